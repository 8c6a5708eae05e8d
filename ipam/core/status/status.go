// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"fixedip.io/fixedip/ipam/api/v1alpha1"
	"fixedip.io/fixedip/ipam/core/ledger"
)

// The names of both programs.
const (
	Controller = "fixedip-controller"
	Scheduler  = "fixedip-scheduler"
)

// ProgramNames are the names of both programs.
var ProgramNames = []string{Controller, Scheduler}

// The labels by which the Deployments and pods of both programs are found. The component is the name of the program without
// the prefix fixedip-.
const (
	NameLabel      = "app.kubernetes.io/name"
	ComponentLabel = "app.kubernetes.io/component"
	// Product is the value of NameLabel.
	Product = "fixedip"
)

// LabelsOf returns the labels of the Deployment and the pods of a program.
func LabelsOf(program string) map[string]string {
	return map[string]string{NameLabel: Product, ComponentLabel: strings.TrimPrefix(program, Product+"-")}
}

// programOf returns the program whose Deployment or pod has the labels; empty if they belong to neither program.
func programOf(labels map[string]string) string {
	for _, program := range ProgramNames {
		if labels[NameLabel] == Product && program == Product+"-"+labels[ComponentLabel] {
			return program
		}
	}
	return ""
}

// Inputs are the objects that Of judges.
type Inputs struct {
	// Deployments are the Deployments of both programs, and Pods their pods.
	Deployments []appsv1.Deployment
	Pods        []corev1.Pod
	// ConfigMaps are the ConfigMaps that the Deployments and pods mount, as far as they exist. Key: "namespace/name".
	ConfigMaps map[string]*corev1.ConfigMap
	// Leases are the Leases of both programs, as far as they exist. Key: the result of LeaseOf as "namespace/name".
	Leases map[string]*coordinationv1.Lease
	// CiliumConfig is the ConfigMap cilium-config; nil: it does not exist. CiliumNamespace is its namespace.
	CiliumConfig    *corev1.ConfigMap
	CiliumNamespace string
	// Agents is the DaemonSet of the agents; nil: it does not exist.
	Agents *appsv1.DaemonSet
	// MissingKinds are the kinds of objects that the API server does not serve, by their constants, such as FixedIPs.
	MissingKinds []string
	// Pools contains the pools of all nodes; nil if they could not be read. FixedIPs are the FixedIPs of all namespaces.
	Pools    *ledger.Ledger
	FixedIPs []v1alpha1.FixedIP
	// Unread are the kinds of objects that could not be read. Parts of the report that need them are not judged.
	Unread []Unread
	// Now is the time at which the objects were read.
	Now time.Time
}

// The values of Unread.What and of Inputs.MissingKinds.
const (
	Deployments    = "Deployments"
	Pods           = "pods"
	Configurations = "ConfigMaps of the programs"
	Leases         = "Leases"
	CiliumConfig   = "ConfigMap cilium-config"
	Agents         = "DaemonSet of the agents"
	CiliumNodes    = "CiliumNodes"
	FixedIPs       = "FixedIPs"
	NodeSubnets    = "NodeSubnets"
)

// Unread is a kind of objects that could not be read.
type Unread struct {
	// What is one of the constants above.
	What string `json:"what"`
	// Why is the error of the API server.
	Why string `json:"why"`
}

// Problem is a reason why an installation does not work as configured.
type Problem struct {
	// Text is a sentence without its full stop.
	Text string `json:"text"`
	// Help is advice on how to end the problem.
	Help string `json:"help"`
}

// Report is the state of an installation.
type Report struct {
	// Healthy is true if there are no problems and everything could be read.
	Healthy       bool          `json:"healthy"`
	Programs      []Program     `json:"programs"`
	Configuration Configuration `json:"configuration"`
	Cilium        Cilium        `json:"cilium"`
	Pools         Pools         `json:"pools"`
	FixedIPs      Counts        `json:"fixedIPs"`
	// NotReadable and Problems are never null.
	NotReadable []Unread  `json:"notReadable"`
	Problems    []Problem `json:"problems"`
}

func (r *Report) problem(help, text string, args ...any) {
	r.Problems = append(r.Problems, Problem{Text: fmt.Sprintf(text, args...), Help: help})
}

// Of returns the state of an installation.
func Of(in Inputs) Report {
	r := Report{NotReadable: append([]Unread{}, in.Unread...), Problems: []Problem{}}
	j := judge{Report: &r, in: in}
	j.kinds()
	j.programs()
	j.configuration()
	j.cilium()
	j.pools()
	j.fixedIPs()
	r.Healthy = len(r.Problems) == 0 && len(r.NotReadable) == 0
	return r
}

// judge builds one report.
type judge struct {
	*Report
	in Inputs
}

// reads reports whether objects could be read. what is one of the constants of this package.
func (j *judge) reads(what string) bool {
	return !slices.ContainsFunc(j.in.Unread, func(u Unread) bool { return u.What == what })
}

func (j *judge) kinds() {
	for _, kind := range j.in.MissingKinds {
		switch kind {
		case CiliumNodes:
			j.problem("install Cilium with ipam.mode=crd", "The API server does not serve CiliumNodes, so no node has a pool")
		case FixedIPs, NodeSubnets:
			j.problem("install the CRDs of fixedip", "The API server does not serve %s", kind)
		default:
			j.problem("check what the API server serves: kubectl api-resources", "The API server does not serve %s", kind)
		}
	}
}

// some returns at most five names, and the number of the remaining names, as text.
func some(names []string) string {
	const most = 5
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
