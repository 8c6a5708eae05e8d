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
package integration
