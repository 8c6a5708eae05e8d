#!/usr/bin/env bash
# Copyright The fixedip Authors
# SPDX-License-Identifier: Apache-2.0

# Checks the code that our programs call for known vulnerabilities: hack/vulncheck.sh DATABASE
#
# Exit status 1: a finding without a row in docs/project/vulnerabilities.md. Exit status 2: govulncheck failed, for example
# because it could not read the database, so the result is unknown.
set -euo pipefail
cd "$(dirname "$0")/.."
database=$1
table=docs/project/vulnerabilities.md
govulncheck() { go tool -modfile=hack/tools/go.mod govulncheck -db "$database" "$@"; }

unread() {
  printf '%s\nNOT CHECKED: govulncheck failed with the error above, so the result is unknown. The vulnerability database is %s.\n' \
    "$1" "$database" >&2
  exit 2
}

# Query one module first, because that reads the database at once. The check of our programs reads it only after minutes.
report=$(govulncheck -mode=query -json golang.org/x/net@v0.1.0 2>&1) || unread "$(tail -n 1 <<<"$report")"

status=0
report=$(govulncheck ./cmd/... 2>&1) || status=$?
case $status in
0) echo "Our programs call no code with a known vulnerability, according to $database." && exit ;;
3) ;; # vulnerabilities were found
*) unread "$report" ;;
esac
echo "$report"
found=$(grep -oE '^Vulnerability #[0-9]+: GO-[0-9]+-[0-9]+' <<<"$report" | grep -oE 'GO-[0-9]+-[0-9]+' | sort -u)
unjudged=()
for id in $found; do
  grep -q "^| $id " "$table" || unjudged+=("$id")
done
if [ ${#unjudged[@]} -gt 0 ]; then
  echo "Not judged in $table: ${unjudged[*]}" >&2
  exit 1
fi
echo "All of them are judged in $table."
