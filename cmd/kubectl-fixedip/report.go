// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/ipam/core/redact"
)

// logLines is the number of lines of each log in a report.
const logLines = 1000

const reportNotice = `This is a report of kubectl fixedip.

%s
Secrets are never read. Values of environment variables, and labels and annotations of other programs, are removed from the objects.
Logs and events are free text and may still contain names or other confidential data. Check all files before you publish them.

status.txt, status.yaml  output of kubectl fixedip status
check.yaml               contradictions between objects
version.yaml             versions of this program, the servers and Kubernetes
configuration/           the ConfigMaps of both programs
cilium-config.yaml       the settings of Cilium that matter for addresses
objects/                 FixedIPs, NodeSubnets, CiliumNodes, Deployments, pods, Leases, and the status of the Cilium DaemonSet
events.txt               events about FixedIPs, NodeSubnets, CiliumNodes and the pods of both programs, and all events of the controller
logs/                    the last 1,000 lines of each container of both programs, and of its previous run
errors.txt               errors of the requests that failed
`

const (
	redacted    = "Names of namespaces, pods, nodes and workloads, and IP addresses are replaced by tokens, the same in all files."
	notRedacted = "Names and IP addresses are NOT replaced."
)

func reportCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var where installation
	var file string
	var plain bool
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Write an archive for a bug report, in which tokens replace most names and the addresses",
		Long: `Write a tar.gz archive for a bug report: status, check, versions, configuration, FixedIPs, NodeSubnets, CiliumNodes, the
Deployments and pods of both programs with the last 1,000 lines of their logs, events and Leases.

Names of namespaces, pods, nodes and workloads, and addresses are replaced by tokens, the same in all files, unless --no-redact
is set. Secrets are never read. Values of environment variables, and labels and annotations of other programs, are removed from
the objects. Logs and events are free text: check all files before you publish them. The file errors.txt lists the requests
that failed.`,
		Args: cobra.NoArgs,
		RunE: connected(flags, func(ctx context.Context, c *cluster, _ []string) error {
			at := time.Now().UTC()
			name := "fixedip-report-" + at.Format("20060102-150405")
			if file == "" {
				file = name + ".tar.gz"
			}
			report := c.report(ctx, where, 5*time.Second)
			if err := ctx.Err(); err != nil {
				return err
			}
			return report.save(streams, file, name, at, plain)
		}),
	}
	cmd.Flags().StringVarP(&file, "file", "f", "", "File to write, which must not exist; - writes to the standard output; default: fixedip-report-TIME.tar.gz")
	cmd.Flags().BoolVar(&plain, "no-redact", false, "Keep names and addresses")
	where.addFlags(cmd)
	return cmd
}

// report is the content of an archive before names and addresses are replaced.
type report struct {
	// texts are files of text. Key: the path in the archive.
	texts map[string]string
	// objects are files of objects, as encoding/json decodes them. Key: the path in the archive.
	objects map[string]any
	// subnets and names are the subnets and names that redact.Redactor replaces.
	subnets []netip.Prefix
	names   map[redact.Kind][]string
	// kept are names that are not replaced: those of the pods of both programs.
	kept []string
	// errs are the errors that occurred while the content was collected.
	errs []error
}

// name adds names of objects, which are replaced unless --no-redact is set.
func (r *report) name(kind redact.Kind, names ...string) {
	r.names[kind] = append(r.names[kind], names...)
}

// failed records an error. It reports whether err is not nil.
func (r *report) failed(err error) bool {
	if err != nil {
		r.errs = append(r.errs, err)
	}
	return err != nil
}

// object adds a file with value. It first removes the values that no report may contain (see redact.Strip).
func (r *report) object(path string, value any) {
	encoded, err := json.Marshal(value)
	var tree any
	if err == nil {
		err = json.Unmarshal(encoded, &tree)
	}
	if !r.failed(err) {
		r.objects[path] = redact.Strip(tree)
	}
}

// save writes the archive to a new file, or to the standard output if file is "-". folder is the folder in the archive. If
// errors occurred while the content was collected, save says so on the standard error output.
func (r *report) save(streams genericiooptions.IOStreams, file, folder string, at time.Time, plain bool) error {
	files, err := r.files(plain)
	if err != nil {
		return err
	}
	if file == "-" {
		err = writeArchive(streams.Out, folder, at, files)
	} else {
		err = saveArchive(file, folder, at, files)
	}
	if err != nil {
		return err
	}
	if n := len(r.errs); n > 0 {
		fmt.Fprintf(streams.ErrOut, "The report is incomplete; number of errors: %d. The file errors.txt in the report lists them.\n", n)
	}
	if file == "-" {
		return nil
	}
	_, err = fmt.Fprintf(streams.Out, "The report is in %s. Look through it before you publish it.\n", file)
	return err
}

// files returns the files of the archive. Key: the path. Names and addresses are replaced unless plain is true.
func (r *report) files(plain bool) (map[string][]byte, error) {
	replaced := redact.New(r.subnets)
	replaced.Keep(r.kept...)
	for _, kind := range []redact.Kind{redact.Namespace, redact.Node, redact.Pod, redact.Workload, redact.NodeSubnet, redact.Other} {
		names := r.names[kind]
		slices.Sort(names)
		replaced.Add(kind, names...)
	}
	errs := ""
	for _, err := range r.errs {
		errs += err.Error() + "\n"
	}
	texts := map[string]string{"errors.txt": errs}
	for path, text := range r.texts {
		texts[path] = text
	}
	for _, path := range sortedKeys(texts) {
		replaced.Learn(texts[path])
	}
	for _, path := range sortedKeys(r.objects) {
		replaced.LearnTree(r.objects[path])
	}
	notice := redacted
	if plain {
		notice = notRedacted
	}
	files := map[string][]byte{"README.txt": fmt.Appendf(nil, reportNotice, notice)}
	for _, path := range sortedKeys(texts) {
		text := texts[path]
		if !plain {
			text = replaced.Text(text)
		}
		files[path] = []byte(text)
	}
	for _, path := range sortedKeys(r.objects) {
		tree := r.objects[path]
		if !plain {
			tree = replaced.Tree(tree)
		}
		encoded, err := yaml.Marshal(tree)
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", path, err)
		}
		files[path] = encoded
	}
	return files, nil
}

func sortedKeys[V any](m map[string]V) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// writeArchive writes the files into a folder of a tar.gz archive. Key of files: the path in the folder.
func writeArchive(out io.Writer, folder string, at time.Time, files map[string][]byte) error {
	zipped := gzip.NewWriter(out)
	archive := tar.NewWriter(zipped)
	for _, path := range sortedKeys(files) {
		header := &tar.Header{Name: folder + "/" + path, Mode: 0o644, Size: int64(len(files[path])), ModTime: at, Typeflag: tar.TypeReg}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("write %s into the archive: %w", path, err)
		}
		if _, err := io.Copy(archive, bytes.NewReader(files[path])); err != nil {
			return fmt.Errorf("write %s into the archive: %w", path, err)
		}
	}
	if err := errors.Join(archive.Close(), zipped.Close()); err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	return nil
}

// saveArchive writes the archive to a new file that only the user can read.
func saveArchive(file, folder string, at time.Time, files map[string][]byte) (err error) {
	out, err := os.OpenFile(filepath.Clean(file), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("create the report: %w", err)
	}
	defer func() {
		if closeErr := out.Close(); err == nil && closeErr != nil {
			err = fmt.Errorf("write the report %s: %w", file, closeErr)
		}
	}()
	return writeArchive(out, folder, at, files)
}

// imageHosts returns the host and the folders of an image, which may name a company.
func imageHosts(image string) []string {
	parts := strings.Split(image, "/")
	hosts := slices.Clone(parts[:len(parts)-1])
	for i := range hosts {
		hosts[i], _, _ = strings.Cut(hosts[i], ":")
	}
	return hosts
}
