// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package image builds container images without a container engine, from the stages of a Dockerfile that begin with
// "FROM scratch". It writes archives that docker, podman, containerd, kind, crane and skopeo read.
//
// The package supports only the instructions that such a stage needs: COPY of built files, USER and ENTRYPOINT. It
// refuses all other instructions, so that the image equals that of a container engine. It runs no commands and compiles
// no programs.
package image
