// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package subnetmap

import "slices"

// State is the use of one address.
type State string

// The states. States contains the description of each.
const (
	Free        State = "Free"
	Fixed       State = "Fixed"
	FixedUsed   State = "FixedUsed"
	Reserved    State = "Reserved"
	DynamicFree State = "DynamicFree"
	DynamicUsed State = "DynamicUsed"
	Unreserved  State = "Unreserved"
	Unlisted    State = "Unlisted"
	NodeOwned   State = "NodeOwned"
	Cooldown    State = "Cooldown"
	Releasing   State = "Releasing"
	Moved       State = "Moved"
	MoveTarget  State = "MoveTarget"
	Foreign     State = "Foreign"
	Excluded    State = "Excluded"
)

// Description explains a state in the legend of a picture.
type Description struct {
	State State
	// Symbol is one ASCII character. No two states have the same symbol.
	Symbol byte
	// Text explains the state.
	Text string
}

// States are the states in the order of a legend.
var States = []Description{
	{FixedUsed, 'F', "fixed address, in use"},
	{Fixed, 'f', "fixed address, not in use at the last report of the agent"},
	{Reserved, 'r', "reserved by a FixedIP, without a pool entry"},
	{DynamicUsed, 'D', "in use by a pod without a fixed address"},
	{DynamicFree, 'd', "offered to pods without a fixed address"},
	{Unreserved, 'P', "entry of a pod without a fixed address on a strict node"},
	{Unlisted, '!', "in use without a pool entry"},
	{NodeOwned, 'N', "used by the node itself"},
	{Cooldown, 'c', "released or withdrawn, offered to no pod yet"},
	{Releasing, 'h', "withheld by the agent for a release handshake"},
	{Moved, 'm', "moved to the pool of another node"},
	{MoveTarget, 't', "about to arrive from another node"},
	{Foreign, '?', "entry with an owner that fixedip does not know"},
	{Free, '.', "free"},
	{Excluded, '-', "not for pods (network and broadcast address)"},
}

// Describe returns the description of a state, which has to be in States.
func (s State) Describe() Description {
	return States[slices.IndexFunc(States, func(d Description) bool { return d.State == s })]
}
