// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package pages reads and runs the commands of pages of the documentation.
//
// A page is Markdown. The language of a fenced block says what the block is:
//
//	sh       a script. Each block is run on its own, with bash -euo pipefail. It has to end with status 0.
//	console  commands, each after "$ ", and the output of each. In the output "*" stands for any text of a line, the width
//	         of white space does not matter, and a line "..." stands for any number of lines. A command whose output differs
//	         is run again for a while, so the command must only read. Its exit status does not count, because commands such
//	         as kubectl fixedip check report problems with it.
//	yaml, text, json
//	         not run.
//
// A block without a language, or with another one, is an error: no command can be left out by mistake. The comment
// "<!-- cluster: IPv4,IPv6 -->" says which families the cluster of the page has; the default is IPv4.
//
// The package cluster, in a subfolder, runs the pages of docs/start and docs/tasks on real nodes.
package pages
