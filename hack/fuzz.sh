#!/usr/bin/env bash
# Copyright The fixedip Authors
# SPDX-License-Identifier: Apache-2.0

# Fuzzes each target for a duration: hack/fuzz.sh DURATION [TARGET]
#
# TARGET is a regular expression; only the targets whose names match it are fuzzed.
#
# go test -fuzz instruments every dependency of a target, so Kubernetes and Cilium would be compiled again. Here only our
# own packages are instrumented, and the rest comes from the build cache, which also stores the growing corpus. Failing
# inputs are written to testdata/fuzz, to be committed with the fix.
set -euo pipefail
cd "$(dirname "$0")/.."
duration=$1 only=${2:-.}
module=$(go list -m) cache=$(go env GOCACHE)/fuzz
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

failed=()
while IFS= read -r package; do
  targets=$(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\)(.*/\1/p' "$package"/*_test.go | grep -E "$only" || true)
  [ -n "$targets" ] || continue
  go test -c -o "$out/test" -gcflags="$module/...=-d=libfuzzer" "./$package"
  for target in $targets; do
    echo "--- $package $target"
    status=0
    (cd "$package" && "$out/test" -test.run='^$' -test.fuzz="^$target\$" -test.fuzztime="$duration" -test.fuzzminimizetime=5s \
      -test.parallel="${FUZZ_PARALLEL:-1}" -test.fuzzcachedir="$cache/$module/$package") >"$out/log" 2>&1 || status=$?
    # Before Go 1.27 the end of the fuzzing time may be reported as a failure (go.dev/issue/75804). The log of a real failure
    # has more lines.
    if [ $status != 0 ] && ! [ "$(sed -n '/^--- FAIL/,$p' "$out/log" | sed 1d | tr -d ' \n')" = "contextdeadlineexceededFAIL" ]; then
      cat "$out/log"
      # An input that runs for ten seconds is reported as a hang, even if only the machine is busy. Run the input again: only
      # a real hang fails in the second run too.
      input=$(sed -n 's|.*Failing input written to ||p' "$out/log")
      if grep -q 'process hung or terminated' "$out/log" && [ -n "$input" ] &&
        (cd "$package" && timeout 60 "$out/test" -test.run="^$target\$" -test.timeout=30s); then
        echo "The input passes in a second run: the machine was busy."
        rm "$package/$input"
        continue
      fi
      failed+=("$package $target")
    else
      grep -E '^fuzz: elapsed' "$out/log" | tail -n 1
    fi
  done
done < <(grep -rl --include='*_test.go' '^func Fuzz' cmd ipam plugins test | xargs -n 1 dirname | sort -u)

if [ ${#failed[@]} -gt 0 ]; then
  printf 'Failed: %s\n' "${failed[@]}"
  exit 1
fi
