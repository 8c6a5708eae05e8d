// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package configuration contains the settings that administrators write once for both programs.
//
// Both programs mount the same file: the controller names it with --config, and the scheduler in the field configuration of
// FixedIPArgs. The controller's older flags set the same fields, and take precedence over the file. Settings of one program
// only, such as timeouts, are flags of the controller or fields of FixedIPArgs.
//
// The package decodes, completes and validates a configuration. The caller reads the file.
package configuration
