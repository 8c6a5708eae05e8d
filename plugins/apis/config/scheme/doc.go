// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package scheme registers FixedIPArgs with the schemes that kube-scheduler uses to decode its configuration. Import it
// for that effect; it exports nothing.
package scheme
