// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

// Package integration holds the tests that need a real API server, and those that need Cilium's own
// allocator beside it. Our programs run in them as processes of their own, built with the race
// detector, as the service accounts and with the rights that the manifests give them.
//
// What the guide to fixed addresses on Cilium asks for, row by row, and the test that shows it:
//
//	G1   Owner binding                TestG1OwnerBinding
//	G2   Same address after a restart TestG2SameAddress: of pods, controller, scheduler, agent, and of a node's machine
//	G3   Recycle                      TestG3Recycle
//	G4   By events, and by a sweep    TestG4EventsAndSweep
//	G5   Subnets                      TestG5SubnetManagement
//	G6   CEP keeper                   TestG6CEPKeeper
//	G7   High availability            TestG7HighAvailability
//	G8   Dual stack                   TestG8Families
//	G9   Mode one: label selector     TestG9AdoptMode
//	G10  Mode two: entries by hand    TestG10HandWrittenOwners
//	G11  Annotations                  TestG11Annotations
//	G12  Watermarks                   TestG12Watermarks
//	G13  Exclusion                    TestG13Exclusion
//	G14  The guide's spelling         TestG14GuideDeployment
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
// What is promised of scheduling, and the test that shows it here, against both:
//
//	Steering, bystanders, strangers  TestG1OwnerBinding, TestG2SameAddress, TestG11Annotations, TestStranger
//	Preemption on the owner node     TestPreemption
//	Dual stack                       TestG8Families, TestSecondFamily, TestAskedForOneOfTwoFamilies
//	Asked-for addresses              TestG11Annotations, TestAskedForInVain
//	What FixedIPs keep               TestKeptBeforehand, TestFixedIPValidation
//	The owner node is gone           TestOwnerNodeGoneAndBack
//	Failover                         TestMigrate, TestMigrateDualStack, TestMigrateOnlyFenced, TestMigrateNotAllowed,
//	                                 TestReassign, TestSchedulerKilledDuringMove
//	Other kinds, slots               TestG18OtherOwners
//	Picking and resting              TestG24Rotation
//	Filling evenly, by weight        TestSubnetsFillEvenly, TestScoreWeight
//	Claims                           TestPools, TestBurstOnOneNode, TestMassRestart, TestSecondClaimIsReleased
//	Wake-ups                         TestNoLostWakeUps, TestSubnetFull, TestAskedForInVain
//	Retention policy                 TestG22RetentionTTL, TestScaleDownAndUp, TestStatefulSetDeleted
//	Sticky MAC                       TestG19StickyMAC
//	Explaining                       TestExplain, TestAskedForInVain
//	Gangs                            TestGang
//	Volumes                          TestVolumeAndAddress, TestVolumeInAZone
//	Metrics and readiness            TestMetrics, TestReadiness
//	Mistakes in flags and arguments  TestBadFlags, TestBadSchedulerArgs, TestOlderAPIServer
//	The controller is down           TestG1OwnerBinding, TestG2SameAddress, TestG4EventsAndSweep
//	Giving an address up, owners     TestFixedIPDeletedByHand, TestStatefulSetReplacedAroundItsPods
//	Crashes, two schedulers          TestSchedulerKilledBetweenClaimAndBind, TestKilledDuringChurn, TestTwoActiveSchedulers
//
// And of the controller:
//
//	Subnets, and nodes that go       TestG5SubnetManagement, TestG23NodeCIDRs, TestNodeReplaced, TestHeldSubnet, TestHoldAndFree
//	Pools                            TestG12Watermarks, TestShrinkAcrossRestarts, TestKeptInThePool, TestPoolGrowsForPodsThatWait
//	Strict nodes                     TestStrictNode, TestStrictNodeDaemonSet, TestNodeTurnsStrict
//	Records                          TestG10HandWrittenOwners, TestGuidesClusterTakenOver, TestRestoredFromSpecs
//	Reclaim                          TestG3Recycle, TestG4EventsAndSweep, TestOptedOut, TestFieldBugs, and the retention policy above
//	What went wrong elsewhere        TestFieldBugs, and docs/project/field-bugs.md for all others (TestFieldBugsTable)
//	Verify, conflicts                TestFirstPlacementAdopted, TestMismatch, TestLateAgents, TestLateAgentOfSlots, TestConflicts
//	CiliumEndpoints                  TestG6CEPKeeper
//	Pods of other schedulers         TestG9AdoptMode, TestG13Exclusion
//	Flags, dry run, metrics          TestG14GuideDeployment, TestG15GuideScenarios, TestDryRun, TestG17ControllerMetrics
//	Crashes, two controllers         TestKilledAtEveryWrite, TestG7HighAvailability, TestG5SubnetManagement
//	Writes that fail, of both        TestEveryWriteFails
//	Kills at random, of all          TestKilledAtRandom
//	Linearizable                     TestEveryWriteFails, TestKilledAtRandom, and TestHistoryModel for the checker
//	Rights                           TestG21Security, TestRightsAreUsed
//	Tenants, admission               TestTenant, TestAdmission
//	kubectl fixedip                  TestG16KubectlPlugin
//	Installing, updates, drains      TestInstalled
package integration
