# Copyright The fixedip Authors
# SPDX-License-Identifier: Apache-2.0

# An image for each program: one static binary, no shell, no root.
#
#   docker build --target fixedip-controller --build-arg VERSION=v1.0.0 -t fixedip-controller:v1.0.0 .
#
# make images builds the same images without a container engine, from the stages below that start from scratch
# (hack/image).
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
ARG TARGETOS
ARG TARGETARCH
RUN GOOS=$TARGETOS GOARCH=$TARGETARCH make build VERSION=$VERSION

FROM scratch AS fixedip-scheduler
COPY --from=build /src/bin/fixedip-scheduler /
USER 65532:65532
ENTRYPOINT ["/fixedip-scheduler"]

FROM scratch AS fixedip-controller
COPY --from=build /src/bin/fixedip-controller /
USER 65532:65532
ENTRYPOINT ["/fixedip-controller"]
