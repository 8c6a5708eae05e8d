// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package config contains the configuration of the controller and its validation.
//
// It may not read a file or a flag: the program does that.
package config
