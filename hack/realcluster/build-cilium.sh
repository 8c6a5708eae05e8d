#!/usr/bin/env bash
# Copyright The fixedip Authors
# SPDX-License-Identifier: Apache-2.0

# Builds the unmodified Cilium programs of a node into a folder for each version: the agent, the CNI plugin, the sources of
# the eBPF programs that the agent compiles, and the CRDs.
#
#   hack/realcluster/build-cilium.sh LINE BIN
#
# Each line of Cilium is a separate module, because each has its own Kubernetes libraries.
set -euo pipefail
line=$1 bin=$(realpath "$2") here=$(dirname "$(realpath "$0")")
cd "$here/modules/cilium-$line"
version=$(go list -m -f '{{.Version}}' github.com/cilium/cilium)
out=$bin/cilium-$version
# The stamp names the source of the folder and is written last: if it matches, the folder is complete.
complete=$out/complete
sum=$(cat go.mod go.sum "$here/build-cilium.sh" | sha256sum)
if [[ -f $complete && $(<"$complete") == "$sum" ]]; then
  exit 0
fi
echo "building Cilium $version: minutes, 3.5 GB of memory and 2 GB of disk the first time"
mkdir -p "$out"
rm -f "$complete"
for program in cilium-agent:daemon cilium-cni:plugins/cilium-cni; do
  "$here/../build.sh" "$out/${program%%:*}" "github.com/cilium/cilium/${program##*:}" \
    -ldflags "-s -w -X 'github.com/cilium/cilium/pkg/version.ciliumVersion=${version#v} module unknown'"
done
module=$(go list -m -f '{{.Dir}}' github.com/cilium/cilium)
rm -rf "$out/bpf" "$out/crds"
# Files of the module cache are read-only, and most of them are tests.
mkdir "$out/crds"
cp -R --no-preserve=mode "$module/bpf" "$out/bpf"
rm -rf "$out/bpf/tests" "$out/bpf/complexity-tests"
cp --no-preserve=mode "$module"/pkg/k8s/apis/cilium.io/client/crds/*/*.yaml "$out/crds"
echo "$sum" > "$complete"
