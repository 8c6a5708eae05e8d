// Package ipam is the root of all that decides about addresses, records them and gives them back.
// It holds no code of its own. The parts, each allowed to import those above it and no others:
//
//	api         the FixedIP resource: types, nothing that acts
//	core        what is decided: addresses, pools, the ledger, identities, plans. Pure: no client,
//	            no clock, no goroutine; Kubernetes objects are values here
//	store       what is read and written: CiliumNodes, the ticket for subnets, workloads of any
//	            kind. The only part that knows how Cilium spells a pool
//	controller  when it is done: the glue to controller-runtime
//
// The scheduler plugin (plugins/fixedip) is the other glue beside controller: it uses core and
// store, and the two kinds of glue know nothing of each other. imports_test.go holds all this.
package ipam
