// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// The ports on which the programs serve metrics while the demo records them.
	controllerPort, schedulerPort = 19470, 19259
	// scrapeInterval is the interval between two reads of the metrics.
	scrapeInterval = 5 * time.Second
	// cordonedFor is the time for which the act about a cordoned node keeps the node cordoned.
	cordonedFor = 20 * time.Second
)

// recording writes the metrics of both programs into files, as Prometheus would scrape them. Each file is named after the
// time in milliseconds since 1970 and the program, and has the metrics in the text format.
type recording struct {
	// period is the time for which acts are repeated.
	period time.Duration
	folder string
}

// start creates the folder, and records the metrics in the background until ctx ends. It returns an error if the folder exists
// already. token is the token of a user who may read the metrics.
func (r *recording) start(ctx context.Context, token string) error {
	if err := os.Mkdir(r.folder, 0o755); err != nil {
		return fmt.Errorf("-scrapes: %w", err)
	}
	go func() {
		// The certificate of a scheduler is self-signed.
		api := &http.Client{Timeout: scrapeInterval, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		for now := range time.Tick(scrapeInterval) {
			if ctx.Err() != nil {
				return
			}
			for program, url := range map[string]string{
				"controller": fmt.Sprintf("http://127.0.0.1:%d/metrics", controllerPort),
				"scheduler":  fmt.Sprintf("https://127.0.0.1:%d/metrics", schedulerPort),
			} {
				// Ignore the error: a killed program serves no metrics until it is restarted, as in a real cluster.
				if text, err := scrape(ctx, api, url, token); err == nil {
					err = os.WriteFile(filepath.Join(r.folder, fmt.Sprintf("%d-%s.txt", now.UnixMilli(), program)), text, 0o600)
					if err != nil {
						fmt.Fprintln(os.Stderr, "demo: write metrics:", err)
					}
				}
			}
		}
	}()
	return nil
}

func scrape(ctx context.Context, api *http.Client, url, token string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := api.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	return io.ReadAll(response.Body)
}

// record repeats three acts until the period is over. It completes a repetition that has begun. Only record performs the act
// cordoned.
func (d *demo) record(ctx context.Context) error {
	for end := time.Now().Add(d.recording.period); time.Now().Before(end); {
		for _, act := range []func(context.Context) error{d.cordoned, d.allPodsDeleted, d.rollingRestart} {
			if err := d.perform(ctx, act); err != nil {
				return err
			}
		}
	}
	return nil
}

// cordoned deletes a pod whose node is cordoned, and uncordons the node after some time.
func (d *demo) cordoned(ctx context.Context) error {
	d.act("a pod is deleted while its node is cordoned", "the pod waits for the node that has its address")
	uids, err := d.uids()
	if err != nil {
		return err
	}
	name, node := workload+"-0", ""
	for _, r := range d.witness.State(namespace) {
		if r.Pod == name {
			node = r.Node
		}
	}
	cordon := func(yes bool) error {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
		patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, yes)
		if err := d.api.Patch(ctx, n, client.RawPatch("application/merge-patch+json", patch)); err != nil {
			return fmt.Errorf("set unschedulable %t on node %s: %w", yes, node, err)
		}
		return nil
	}
	if err := cordon(true); err != nil {
		return err
	}
	if err := d.deletePod(ctx, name); err != nil {
		return err
	}
	select {
	case <-time.After(cordonedFor):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := cordon(false); err != nil {
		return err
	}
	return d.sameAddresses(ctx, map[string]string{name: uids[name]})
}
