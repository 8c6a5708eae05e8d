// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"fixedip.io/fixedip/ipam/core/status"
	"fixedip.io/fixedip/ipam/version"
)

// versions contains the versions that the command version shows. A version of a server is empty if it is unknown.
type versions struct {
	// Client is the version of this program, and ClientKubernetes that of its Kubernetes libraries.
	Client           string `json:"client"`
	ClientKubernetes string `json:"clientKubernetes"`
	// Controller and Scheduler are the versions of both programs, by their images.
	Controller string `json:"controller,omitempty"`
	Scheduler  string `json:"scheduler,omitempty"`
	// Cilium is the version of the agents, by their image.
	Cilium string `json:"cilium,omitempty"`
	// Kubernetes is the version of the API server.
	Kubernetes string `json:"kubernetes,omitempty"`
}

func versionCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var output string
	var clientOnly bool
	var where installation
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this plugin, both programs, Cilium and Kubernetes",
		Long: `Show the versions of this plugin, both programs, Cilium and Kubernetes. The versions of the programs and of Cilium are the tags
of their images. A version is - if it is unknown, for example because the program is not installed or the user may not read its
Deployment.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := validFormat(output); err != nil {
				return err
			}
			show := func(v versions) error {
				return write(streams.Out, output, v, func(out io.Writer) error { return writeVersions(out, v) })
			}
			if clientOnly {
				return show(clientVersions())
			}
			return connected(flags, func(ctx context.Context, c *cluster, _ []string) error {
				v, err := c.versions(ctx, where)
				if err != nil {
					return err
				}
				return show(v)
			})(cmd, args)
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "Show only the version of this plugin, without a request to the API server")
	where.addFlags(cmd)
	outputFlag(cmd, &output)
	return cmd
}

func clientVersions() versions {
	return versions{Client: version.Fixedip(), ClientKubernetes: version.Kubernetes()}
}

// versions reads the versions. A version that the user may not read is empty, except that of the API server. It returns
// an error if the version of the API server cannot be read, or if another request fails for a reason other than missing
// rights or a missing object.
func (c *cluster) versions(ctx context.Context, where installation) (versions, error) {
	v := clientVersions()
	var err error
	if v.Kubernetes, err = c.serverVersion(); err != nil {
		return v, fmt.Errorf("read the version of the API server: %w", err)
	}
	in, err := c.statusInputs(ctx, where)
	if err != nil {
		return v, err
	}
	report := status.Of(in)
	for _, p := range report.Programs {
		switch p.Name {
		case status.Controller:
			v.Controller = p.Version
		case status.Scheduler:
			v.Scheduler = p.Version
		}
	}
	v.Cilium = report.Cilium.Version
	return v, nil
}

func writeVersions(out io.Writer, v versions) error {
	rows := [][]string{{"kubectl-fixedip:", fmt.Sprintf("%s (Kubernetes %s)", v.Client, v.ClientKubernetes)}}
	if v.Kubernetes != "" {
		rows = append(rows, []string{status.Controller + ":", orDash(v.Controller)}, []string{status.Scheduler + ":", orDash(v.Scheduler)},
			[]string{"Cilium:", orDash(v.Cilium)}, []string{"Kubernetes:", v.Kubernetes})
	}
	return table(out, rows)
}
