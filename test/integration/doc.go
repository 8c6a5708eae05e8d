// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package integration contains the tests that need a real API server, and those that also need Cilium's own allocator. Our
// programs run as separate processes under the service accounts and with the rights of the manifests. The controller and the
// scheduler are built with the race detector, except in some tests that measure times or resources.
//
// Requirements of the guide to fixed addresses on Cilium, and the test of each:
//
//	G1   Owner binding                TestG1OwnerBinding
//	G2   Same address after a restart TestG2SameAddress, after restarts of pod, controller, scheduler, agent and node
//	G3   Recycle                      TestG3Recycle
//	G4   Events and resync            TestG4EventsAndResync
//	G5   Subnets                      TestG5SubnetManagement
//	G6   CiliumEndpoints              TestG6CEPKeeper
//	G7   High availability            TestG7HighAvailability
//	G8   Dual stack                   TestG8Families
//	G9   Mode one: label selector     TestG9AdoptMode
//	G10  Mode two: entries by hand    TestG10HandWrittenOwners
//	G11  Annotations                  TestG11Annotations
//	G12  Watermarks                   TestG12Watermarks
//	G13  Exclusion                    TestG13Exclusion
//	G14  The guide's flags            TestG14GuideDeployment
//	G15  Scenarios                    TestG15GuideScenarios
//	G16  Troubleshooting              TestG16KubectlPlugin
//	G17  Metrics and alerts           TestG17ControllerMetrics
//	G18  Other owners                 TestG18OtherOwners
//	G19  MAC                          TestG19StickyMAC
//	G20  Figures                      TestG20Figures, and TestG3Recycle for those of recycling
//	G21  Security                     TestG21Security
//	G22  Retention TTL                TestG22RetentionTTL
//	G23  Node CIDRs from Kubernetes   TestG23NodeCIDRs
//	G24  Rotation                     TestG24Rotation
//	G25  Compatibility table          TestG25CompatibilityTable
//
// Promises about scheduling, and their tests:
//
//	Fixed and unreserved pods        TestG1OwnerBinding, TestG2SameAddress, TestG11Annotations
//	Another pod with the same name   TestBarePodWithReservedName
//	Preemption on the home node      TestPreemption
//	Dual stack                       TestG8Families, TestSecondFamily, TestRequestOfOneFamily
//	Requested addresses              TestG11Annotations, TestRequestedAddressUnavailable
//	Reservations of FixedIPs         TestReservedBeforehand, TestFixedIPValidation
//	The home node is deleted         TestOwnerNodeGoneAndBack
//	Failover                         TestMigrate, TestMigrateDualStack, TestMigrateOnlyFenced, TestMigrateNotAllowed,
//	                                 TestReassign, TestSchedulerKilledDuringMove
//	Other kinds, slots               TestG18OtherOwners
//	Choice of addresses, cooldown    TestG24Rotation
//	Filling evenly, by weight        TestSubnetsFillEvenly, TestScoreWeight
//	Claims                           TestPools, TestBurstOnOneNode, TestMassRestart, TestSecondClaimIsReleased
//	Requeueing                       TestNoLostWakeUps, TestSubnetFull, TestRequestedAddressUnavailable
//	Retention policy                 TestG22RetentionTTL, TestScaleDownAndUp, TestStatefulSetDeleted
//	Sticky MAC                       TestG19StickyMAC
//	Explanations                     TestExplain, TestRequestedAddressUnavailable
//	Gangs                            TestGang
//	Volumes                          TestVolumeAndAddress, TestVolumeInAZone
//	Metrics and readiness            TestMetrics, TestReadiness
//	Mistakes in flags and arguments  TestBadFlags, TestBadSchedulerArgs, TestOlderAPIServer, TestMissingRights
//	The controller is down           TestG1OwnerBinding, TestG2SameAddress, TestG4EventsAndResync
//	Releasing an address, workloads  TestFixedIPDeletedByHand, TestStatefulSetReplacedAroundItsPods
//	Crashes, two schedulers          TestSchedulerKilledBetweenClaimAndBind, TestKilledDuringChurn, TestTwoActiveSchedulers
//
// Promises about the controller, and their tests:
//
//	Subnets, lost nodes              TestG5SubnetManagement, TestG23NodeCIDRs, TestNodeReplaced, TestHeldSubnet,
//	                                 TestHoldAndFree, TestNodesAreReplaced
//	Nodes with reserved addresses    TestNodesAreProtected
//	Pools                            TestG12Watermarks, TestShrinkAcrossRestarts, TestDynamicEntryBecomesReserved,
//	                                 TestPoolGrowsForPodsThatWait, TestHandshakesOfOthers
//	Strict nodes                     TestStrictNode, TestStrictNodeDaemonSet, TestNodeTurnsStrict
//	FixedIPs                         TestG10HandWrittenOwners, TestGuidesClusterTakenOver, TestRestoredFromSpecs
//	Release                          TestG3Recycle, TestG4EventsAndResync, TestOptedOut, TestFieldBugs, and the
//	                                 retention policy above
//	Failures of similar systems      TestFieldBugs, and docs/project/field-bugs.md for all others (TestFieldBugsTable)
//	Conformance, conflicts           TestWrongFirstAddress, TestMismatch, TestLateAgents, TestLateAgentOfSlots, TestConflicts
//	CiliumEndpoints                  TestG6CEPKeeper
//	Pods of other schedulers         TestG9AdoptMode, TestG13Exclusion
//	Flags, dry run, metrics          TestG14GuideDeployment, TestG15GuideScenarios, TestDryRun, TestG17ControllerMetrics,
//	                                 TestSecureMetrics, TestMonitoringNamesExist, TestSettingsFollowCilium
//	Crashes, two controllers         TestKilledAtEveryWrite, TestG7HighAvailability, TestG5SubnetManagement
//	Failed writes of both programs   TestEveryWriteFails
//	Random kills of the programs     TestKilledAtRandom
//	Linearizability                  TestEveryWriteFails, TestKilledAtRandom, and TestHistoryModel for the checker
//	Rights                           TestG21Security, TestRightsAreUsed
//	Tenants, admission               TestTenant, TestAdmission, TestClusterPoolsAreGuarded
//	kubectl fixedip                  TestG16KubectlPlugin, TestCheck, TestKubectlStatus, TestKubectlChanges
//	kubectl get                      TestColumns
//	Resources, cost of a claim       TestSoak, TestCostOfAClaim
//	Installing, updates, drains      TestInstalled, and TestUninstall for uninstalling
package integration
