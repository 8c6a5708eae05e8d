// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	ciliumv2 "github.com/cilium/cilium/pkg/k8s/apis/cilium.io/v2"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
)

// saveArchive writes logs and objects to an archive for the analysis of a failure. It returns the path of the archive, or
// the text of the error.
func (t *trial) saveArchive(name string) string {
	path := fmt.Sprintf("%s-%s.tar.gz", t.options.folder(t.at.line), name)
	if err := t.writeArchive(path); err != nil {
		return err.Error()
	}
	return path
}

func (t *trial) writeArchive(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("create an archive: %w", err)
	}
	zip := gzip.NewWriter(file)
	a := &archive{tar: tar.NewWriter(zip)}
	// Errors do not end the collection: an incomplete archive is better than none.
	a.problem(t.addObjects(a))
	a.problem(a.addFolder("logs", filepath.Join(t.dir, "logs")))
	nodes, err := filepath.Glob(filepath.Join(t.dir, "nodes", "*"))
	a.problem(err)
	for _, node := range nodes {
		a.problem(a.addFolder(filepath.Join("nodes", filepath.Base(node)), filepath.Join(node, "disk", "log")))
	}
	a.problem(t.addKernels(a))
	if len(a.problems) > 0 {
		a.add("problems.txt", []byte(errors.Join(a.problems...).Error()))
	}
	if err := errors.Join(a.err, a.tar.Close(), zip.Close(), file.Close()); err != nil {
		return fmt.Errorf("write the archive %s: %w", path, err)
	}
	return nil
}

// archive is an archive that is being written.
type archive struct {
	tar *tar.Writer
	// problems are the errors of items that could not be collected. err is the first write error; nothing is written after
	// it.
	problems []error
	err      error
}

func (a *archive) problem(err error) {
	if err != nil {
		a.problems = append(a.problems, err)
	}
}

func (a *archive) add(name string, data []byte) {
	if a.err != nil {
		return
	}
	a.err = a.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: time.Now()})
	if a.err == nil {
		_, a.err = a.tar.Write(data)
	}
}

// maxLog is the maximum size of a log in the archive, in bytes. The archive contains only the end of a longer log.
const maxLog = 20 << 20

func (a *archive) addFolder(as, dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := readEnd(path)
		if err != nil {
			return err
		}
		a.add(filepath.Join(as, strings.TrimPrefix(path, dir)), data)
		return nil
	})
}

func readEnd(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-maxLog), maxLog))
}

// addObjects adds pods, nodes, events, workloads, and the objects of Cilium and fixedip as YAML. It adds nothing if there
// is no client yet.
func (t *trial) addObjects(a *archive) error {
	if t.api == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for kind, list := range map[string]client.ObjectList{
		"pods": &corev1.PodList{}, "nodes": &corev1.NodeList{}, "events": &corev1.EventList{},
		"statefulsets": &appsv1.StatefulSetList{}, "deployments": &appsv1.DeploymentList{},
		"ciliumnodes": &ciliumv2.CiliumNodeList{}, "ciliumendpoints": &ciliumv2.CiliumEndpointList{},
		"fixedips": &v1alpha1.FixedIPList{}, "nodesubnets": &v1alpha1.NodeSubnetList{},
	} {
		if err := t.api.List(ctx, list); err != nil {
			errs = append(errs, fmt.Errorf("list %s: %w", kind, err))
			continue
		}
		data, err := yaml.Marshal(list)
		if err != nil {
			errs = append(errs, fmt.Errorf("encode %s: %w", kind, err))
			continue
		}
		a.add("objects/"+kind+".yaml", data)
	}
	return errors.Join(errs...)
}

// addKernels adds the network state of the nodes and the kernel log, which shows whether the machine was stalled. It adds
// nothing if the cluster has not started.
func (t *trial) addKernels(a *archive) error {
	if t.cluster == nil || t.wire == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs []error
	for _, name := range []string{calmNode, otherNode, victimNode, spareNode} {
		boxes, err := t.wire.sandboxes(name)
		errs = append(errs, err)
		var text strings.Builder
		for _, b := range boxes {
			fmt.Fprintln(&text, b)
		}
		if node := t.cluster.Node(name); node != nil && len(boxes) > 0 {
			for _, args := range [][]string{{"ip", "address"}, {"ip", "route"}, {"ip", "-6", "route"}, {"iptables-save"}} {
				out, err := node.Run(ctx, args[0], args[1:]...)
				errs = append(errs, err)
				fmt.Fprintf(&text, "\n$ %s\n%s", strings.Join(args, " "), out)
			}
		}
		a.add("kernel/"+name+".txt", []byte(text.String()))
	}
	log, err := exec.CommandContext(ctx, "dmesg", "--time-format=iso").Output()
	errs = append(errs, err)
	a.add("kernel/log.txt", log)
	return errors.Join(errs...)
}
