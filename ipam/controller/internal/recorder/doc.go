// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package recorder shortens the notes of events to the length that the API server accepts. The API server would refuse an
// event with a longer note, and the event would be lost.
package recorder
