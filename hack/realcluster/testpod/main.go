// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Command testpod is the program of the pods in a cluster of real nodes. It is linked statically, so that an image needs no
// other file.
//
//	testpod pause              waits and reaps zombies, as process 1 of a sandbox
//	testpod serve              serves its hostname, MAC address and addresses as JSON over HTTP on port 8080
//	testpod fetch URL          prints the response to a GET request
//	testpod fetch URL SOCKET   sends the request over a Unix socket, such as the socket of the agent
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Pod is the response of testpod serve, in JSON.
type Pod struct {
	Hostname string `json:"hostname"`
	// MAC is the MAC address of eth0.
	MAC string `json:"mac"`
	// Addresses are the addresses of eth0 that are not link-local.
	Addresses []string `json:"addresses"`
}

// fetchTimeout is the time limit of a request. Requests on one machine are much faster.
const fetchTimeout = 5 * time.Second

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "testpod: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "pause":
		return pause()
	case len(args) == 1 && args[0] == "serve":
		return serve()
	case len(args) == 2 && args[0] == "fetch":
		return fetch(args[1], "")
	case len(args) == 3 && args[0] == "fetch":
		return fetch(args[1], args[2])
	}
	return errors.New("invalid arguments; usage: testpod pause | serve | fetch URL [SOCKET]")
}

// pause waits for SIGTERM or SIGINT. Meanwhile it reaps zombies, as process 1 of a pod must do.
func pause() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			break
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
	}
	return nil
}

func serve() error {
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		pod, err := self()
		if err == nil {
			w.Header().Set("Content-Type", "application/json")
			err = json.NewEncoder(w).Encode(pod)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	// Signals have no default action for process 1: without this handler, each deletion would take the whole grace period.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	ended := make(chan error, 1)
	go func() { ended <- http.ListenAndServe(":8080", nil) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-signals:
		return nil
	}
}

func self() (Pod, error) {
	hostname, err := os.Hostname()
	if err != nil {
		return Pod{}, err
	}
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return Pod{}, err
	}
	pod := Pod{Hostname: hostname, MAC: link.HardwareAddr.String()}
	addresses, err := link.Addrs()
	if err != nil {
		return Pod{}, err
	}
	for _, a := range addresses {
		if ip, _, err := net.ParseCIDR(a.String()); err == nil && !ip.IsLinkLocalUnicast() {
			pod.Addresses = append(pod.Addresses, ip.String())
		}
	}
	return pod, nil
}

// fetch prints the response to a GET request. It uses the Unix socket if socket is not empty.
func fetch(url, socket string) error {
	client := http.Client{Timeout: fetchTimeout}
	if socket != "" {
		client.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}
	}
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s responded with status %s", url, response.Status)
	}
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}
