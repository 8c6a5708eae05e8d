#!/usr/bin/env bash
# Copyright The fixedip Authors
# SPDX-License-Identifier: Apache-2.0

# Builds the programs of an earlier commit, for the test that upgrades from it: hack/previous.sh FOLDER [COMMIT]
#
# FOLDER is replaced by the source of the commit, unless it has that source already; the programs are in its folder bin. The
# default of COMMIT is the last tag before HEAD or, if there is none, the commit before HEAD.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1
commit=${2:-$(git describe --tags --abbrev=0 HEAD~1 2>/dev/null || echo HEAD~1)}
hash=$(git rev-parse --verify --quiet "$commit^{commit}") || { echo "There is no commit $commit." >&2; exit 1; }

if [ -e "$folder" ] && [ ! -e "$folder/Dockerfile" ] && [ -n "$(ls -A "$folder")" ]; then
  echo "The folder $folder has other files than the source of a commit; remove it, or choose another folder." >&2
  exit 1
fi
# If the folder already has the source of this commit, keep it and its built programs.
if [ "$(cat "$folder/.previous-commit" 2>/dev/null)" != "$hash" ]; then
  rm -rf "$folder"
  mkdir -p "$folder"
  git archive "$hash" | tar -x -C "$folder"
  echo "$hash" >"$folder/.previous-commit"
fi
echo "building the programs of $commit ($hash)"
make -C "$folder" --no-print-directory build VERSION="$(git describe --tags --always "$hash")"
