// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package docs contains tests that compare reference pages with the code: every event, annotation and label of the code has a
// row, and every row names one of the code.
package docs
