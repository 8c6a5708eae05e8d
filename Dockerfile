# One image for both programs: static binaries, no shell, no root.
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
RUN make build VERSION=${VERSION}

FROM scratch
COPY --from=build /src/bin/fixedip-scheduler /src/bin/fixedip-controller /
USER 65532:65532
