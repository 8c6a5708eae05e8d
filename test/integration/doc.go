// Package integration holds the tests that need a real API server, and those that need Cilium's own
// allocator beside it. Our programs run in them as processes of their own, built with the race
// detector, as the service accounts and with the rights that the manifests give them.
//
// What is promised of scheduling, and the test that shows it here, against both:
//
//	Steering, bystanders, strangers  TestFirstPlacementAndRestart, TestOptOut, TestStranger
//	Preemption on the owner node     TestPreemption
//	Dual stack                       TestDualStack, TestSecondFamily, TestAskedForOneOfTwoFamilies
//	Asked-for addresses              TestAskedFor, TestAskedForInVain
//	What FixedIPs keep               TestKeptBeforehand, TestFixedIPValidation
//	The owner node is gone           TestOwnerNodeGoneAndBack
//	Failover                         TestMigrate, TestMigrateDualStack, TestMigrateOnlyFenced, TestMigrateNotAllowed,
//	                                 TestReassign, TestSchedulerKilledDuringMove
//	Other kinds, slots               TestKindWithStableNames, TestDeploymentUpdates, TestDeploymentSlotsGoBack,
//	                                 TestDeploymentWithoutSlots
//	Picking and resting              TestPicking
//	Filling evenly, by weight        TestSubnetsFillEvenly, TestScoreWeight
//	Claims                           TestPools, TestBurstOnOneNode, TestSecondClaimIsReleased
//	Wake-ups                         TestNoLostWakeUps, TestSubnetFull, TestAskedForInVain
//	Retention policy                 TestRetention, TestScaleDownAndUp, TestStatefulSetDeleted
//	Sticky MAC                       TestStickyMAC
//	Explaining                       TestExplain, TestAskedForInVain
//	Gangs                            TestGang
//	Metrics and readiness            TestMetrics, TestReadiness
//	Mistakes in flags and arguments  TestBadFlags, TestBadSchedulerArgs
//	The controller is down           TestControllerDown
//	Giving an address up, owners     TestFixedIPDeletedByHand, TestStatefulSetReplacedAroundItsPods
//	Crashes, two schedulers          TestSchedulerKilledBetweenClaimAndBind, TestKilledDuringChurn, TestTwoActiveSchedulers
//
// And of the controller:
//
//	Subnets, and nodes that go       TestSubnetSources, TestNodeReplaced, TestHeldSubnet, TestHoldAndFree
//	Pools                            TestG12Watermarks, TestShrinkAcrossRestarts, TestKeptInThePool, TestPoolGrowsForPodsThatWait
//	Strict nodes                     TestStrictNode, TestStrictNodeDaemonSet, TestNodeTurnsStrict
//	Records                          TestG10HandWrittenOwners, TestGuidesClusterTakenOver, TestRestoredFromSpecs
//	Reclaim                          TestG3Recycle, TestOptedOut, TestFieldBugs, and the retention policy above
//	Verify, conflicts                TestFirstPlacementAdopted, TestMismatch, TestLateAgents, TestLateAgentOfSlots, TestConflicts
//	CiliumEndpoints                  TestCiliumEndpoints
//	Pods of other schedulers         TestG9AdoptMode
//	Flags, dry run, metrics          TestG14GuideDeployment, TestG15GuideScenarios, TestDryRun, TestG17ControllerMetrics
//	Crashes                          TestKilledAtEveryWrite
//	kubectl fixedip                  TestG16KubectlPlugin
package integration
