// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package redact

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"fixedip.io/fixedip/ipam/core/address"
)

// Kind is the kind of object that a name belongs to. It is the first part of the token.
type Kind string

// The kinds of names.
const (
	Namespace  Kind = "namespace"
	Pod        Kind = "pod"
	Node       Kind = "node"
	Workload   Kind = "workload"
	NodeSubnet Kind = "nodesubnet"
	Other      Kind = "name"
)

// public are names that every cluster has, and words of log lines and of owner texts that look like names. They are never
// replaced.
var public = map[string]bool{
	"default": true, "kube-system": true, "kube-public": true, "kube-node-lease": true, "fixedip-system": true,
	"fixedip.io": true, "cilium.io": true, "router": true, "health": true, "ingress": true, "bare-pod": true, "true": true, "false": true, "null": true,
}

// word matches a text that may be a name or an address: labels that are joined by dashes, dots and colons and, for a CIDR, a
// slash with a number.
var word = regexp.MustCompile(`[0-9A-Za-z:]+(?:[-.:]+[0-9A-Za-z:]+)*(?:/[0-9]{1,3}\b)?`)

// Redactor replaces names and addresses. Create it with New. It is not safe for concurrent use.
type Redactor struct {
	// names contains the tokens of names; a kept name is its own token. Key: the name. numbers contains the last number of
	// each kind of token.
	names   map[string]string
	numbers map[string]int
	// subnets are the prefixes whose addresses are written relative to them. addrs contains the tokens of addresses. Key: the
	// address; for a CIDR, the part before the slash.
	subnets []netip.Prefix
	addrs   map[netip.Addr]string
}

// New returns a Redactor that knows the subnets of the nodes.
func New(subnets []netip.Prefix) *Redactor {
	r := &Redactor{names: map[string]string{}, numbers: map[string]int{}, addrs: map[netip.Addr]string{}}
	for _, s := range subnets {
		if s = s.Masked(); !slices.Contains(r.subnets, s) {
			r.subnets = append(r.subnets, s)
			r.addrs[s.Addr()] = r.token("subnet")
		}
	}
	// The smallest subnet that contains an address comes first.
	slices.SortStableFunc(r.subnets, func(a, b netip.Prefix) int { return b.Bits() - a.Bits() })
	return r
}

func (r *Redactor) token(kind string) string {
	r.numbers[kind]++
	return fmt.Sprintf("%s-%d", kind, r.numbers[kind])
}

// Add gives each name a token of the kind. The token then replaces the name in texts. Add leaves out names that every cluster
// has, such as kube-system, and names that were added or kept before.
func (r *Redactor) Add(kind Kind, names ...string) {
	for _, name := range names {
		if _, known := r.names[name]; !known && name != "" && !public[name] {
			r.names[name] = r.token(string(kind))
		}
	}
}

// Keep excludes names from the replacement, such as those of the pods that a report is about. Call it before Add and
// Learn.
func (r *Redactor) Keep(names ...string) {
	for _, name := range names {
		r.names[name] = name
	}
}

// keyed matches a key and its value in the formats text and json of log lines. The value may be quoted, and may be an object with
// name and namespace.
var keyed = regexp.MustCompile(`(?i)"?\b(pods?|podName|namespace|nodes?|nodeName|ciliumnode|successor|statefulset|deployment|replicaset|workload|owner|fixedip|nodesubnet|name|reconciled|holder|object|ref)"?[=:]\s?"?([^\s"',;}\]]+)`)

// kinds are the kinds of the names that follow a key in log lines. Key: the key in lower case. The names after the other
// keys of keyed have the kind Other.
var kinds = map[string]Kind{
	"pod": Pod, "pods": Pod, "podname": Pod, "namespace": Namespace, "node": Node, "nodes": Node, "nodename": Node, "ciliumnode": Node, "successor": Node,
	"statefulset": Workload, "deployment": Workload, "replicaset": Workload, "workload": Workload, "nodesubnet": NodeSubnet,
}

// spoken matches a kind and a name in a sentence. Only names with a dash or a slash are learned: the word after a kind may be a
// verb.
var spoken = regexp.MustCompile(`(?i)\b(pod|namespace|node|statefulset|deployment|workload|ciliumnode|fixedip|nodesubnet) "?([a-z0-9][-a-z0-9./]*[-/][-a-z0-9./]*[a-z0-9])\b`)

// object matches the name of a Kubernetes object.
var object = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// Learn finds names in a text and adds them: the values of keys such as pod and node, names after such a word in a
// sentence, and the name after a known namespace and a slash. The names may belong to objects that no longer exist.
func (r *Redactor) Learn(text string) {
	for _, form := range []*regexp.Regexp{keyed, spoken} {
		for _, m := range form.FindAllStringSubmatch(text, -1) {
			kind, ok := kinds[strings.ToLower(m[1])]
			if !ok {
				kind = Other
			}
			r.learn(kind, m[2])
		}
	}
	for _, m := range qualified.FindAllStringSubmatch(text, -1) {
		if _, known := r.names[m[1]]; known || m[1] == "default" {
			r.learn(Pod, m[0])
		}
	}
}

// qualified matches a namespace and a name, separated by a slash.
var qualified = regexp.MustCompile(`\b([a-z0-9][-a-z0-9]*)/([a-z0-9][-a-z0-9.]*)`)

// learn adds the names in namespace/name, namespace/Kind/name or name. It leaves out addresses, numbers, and parts that are
// not names of objects, such as the kind.
func (r *Redactor) learn(kind Kind, value string) {
	parts := strings.Split(strings.TrimRight(value, ".:"), "/")
	for i, part := range parts {
		if _, err := netip.ParseAddr(part); err == nil || !object.MatchString(part) || isNumber(part) {
			continue
		}
		if i == 0 && len(parts) > 1 {
			r.Add(Namespace, part)
			continue
		}
		r.Add(kind, part)
	}
}

func isNumber(s string) bool { return strings.Trim(s, "0123456789") == "" }

// user matches the user in an error of the API server, and host the host of a URL.
var (
	user = regexp.MustCompile(`\b(User \\?")[^"\\]+`)
	host = regexp.MustCompile(`\b(https?://)[-A-Za-z0-9.]*[A-Za-z][-A-Za-z0-9.]*`)
)

// Text returns text with tokens instead of known names and of all addresses and CIDRs, except loopback and unspecified
// addresses. Users in errors of the API server and host names in URLs are removed.
func (r *Redactor) Text(text string) string {
	text = user.ReplaceAllString(text, "${1}"+Removed)
	text = host.ReplaceAllString(text, "${1}"+Removed)
	return word.ReplaceAllStringFunc(text, r.word)
}

// word returns the replacement of a text that the regular expression word matches.
func (r *Redactor) word(w string) string {
	if replaced, ok := r.addr(w); ok {
		return replaced
	}
	// The text is not a CIDR: the slash and the number belong to a name, such as namespace/0.
	if head, rest, ok := strings.Cut(w, "/"); ok {
		return r.word(head) + "/" + r.word(rest)
	}
	if token, ok := r.names[w]; ok {
		return token
	}
	// The colon precedes a port, separates a key from a value, or ends a part of a sentence.
	if i := strings.LastIndex(w, ":"); i >= 0 {
		return r.word(w[:i]) + ":" + r.word(w[i+1:])
	}
	// The labels of a DNS name, such as web-0.web.default.svc.
	if head, rest, ok := strings.Cut(w, "."); ok {
		return r.word(head) + "." + r.word(rest)
	}
	return r.dashed(w)
}

// dashed returns the replacement of a name whose parts between dashes contain known names, such as the name of a pod of a
// ReplicaSet, or IPv4 addresses, such as web-10-240-1-5 or 10-240-1-0-24. If several known names begin at the same part, the
// longest one is replaced.
func (r *Redactor) dashed(w string) string {
	parts := strings.Split(w, "-")
	var found []string
	for len(parts) > 0 {
		token, n := r.part(parts)
		found, parts = append(found, token), parts[n:]
	}
	return strings.Join(found, "-")
}

// part returns the replacement of one or more parts at the beginning of parts, and the number of these parts.
func (r *Redactor) part(parts []string) (token string, n int) {
	for n := len(parts); n > 0; n-- {
		if token, ok := r.names[strings.Join(parts[:n], "-")]; ok {
			return token, n
		}
	}
	if len(parts) >= 4 {
		if a, err := netip.ParseAddr(strings.Join(parts[:4], ".")); err == nil {
			return r.tokenOf(a), 4
		}
	}
	return parts[0], 1
}

// addr returns the replacement of an address, a CIDR, or an IPv4 address with a port. Loopback and unspecified addresses
// stay as they are. ok is false if w is none of these.
func (r *Redactor) addr(w string) (token string, ok bool) {
	if !strings.ContainsAny(w, ".:") {
		return "", false
	}
	host, length, isPrefix := strings.Cut(w, "/")
	a, err := netip.ParseAddr(host)
	if err == nil {
		if a.IsLoopback() || a.IsUnspecified() {
			return w, true
		}
		if isPrefix {
			return r.tokenOf(a) + "/" + length, true
		}
		return r.tokenOf(a), true
	}
	// An IPv4 address and a port.
	if at, err := netip.ParseAddrPort(host); err == nil && !isPrefix {
		if at.Addr().IsLoopback() || at.Addr().IsUnspecified() {
			return w, true
		}
		return fmt.Sprintf("%s:%d", r.tokenOf(at.Addr()), at.Port()), true
	}
	return "", false
}

// tokenOf returns the token of an address. An address in a known subnet is written relative to the subnet, if it is one of
// the first 65,536 of the subnet: the offset of a later address may reveal the interface identifier of a host.
func (r *Redactor) tokenOf(a netip.Addr) string {
	if token, ok := r.addrs[a]; ok {
		return token
	}
	token := ""
	for _, s := range r.subnets {
		if !s.Contains(a) {
			continue
		}
		if offset, ok := offsetIn(s, a); ok {
			token = fmt.Sprintf("%s+%d", r.addrs[s.Addr()], offset)
		}
		break
	}
	if token == "" {
		token = r.token("address-" + strings.ToLower(address.Of(a).String()))
	}
	r.addrs[a] = token
	return token
}

// offsetIn returns the distance of a from the beginning of the subnet. ok is false if it is 65,536 or more.
func offsetIn(s netip.Prefix, a netip.Addr) (offset int, ok bool) {
	first, at := s.Addr().As16(), a.As16()
	for i := range first[:14] {
		if first[i] != at[i] {
			return 0, false
		}
	}
	return (int(at[14])<<8 | int(at[15])) - (int(first[14])<<8 | int(first[15])), true
}
