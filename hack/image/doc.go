// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package image builds container images without a container engine, from the stages of the Dockerfile that start from
// scratch, as archives that docker, podman, containerd, kind, crane and skopeo read. It supports only the instructions that
// such a stage needs (COPY of built files, USER, ENTRYPOINT) and refuses all others, so that the result equals that of a
// container engine. It runs no commands and compiles no programs.
package image
