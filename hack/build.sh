#!/usr/bin/env bash
# Copyright The fixedip Authors
# SPDX-License-Identifier: Apache-2.0

# Builds one program and prints progress, because the first build takes minutes.
#
#   hack/build.sh OUTPUT PACKAGE [go build flag ...]
set -euo pipefail
output=$1 package=$2
shift 2

# go build -v prints each package that it compiles and each module that it downloads, but no packages from the build
# cache.
go build -v -o "$output" "$@" "$package" 2> >(awk -v name="$(basename "$output")" '
  /^go: downloading/ { if (++modules % 50 == 1) { printf "  %s: downloading modules (%d so far)\n", name, modules; fflush() } next }
  /^[a-zA-Z0-9.\/_-]+$/ { if (++packages % 100 == 0) { printf "  %s: %d packages compiled\n", name, packages; fflush() } next }
  { print; fflush() }' >&2)
