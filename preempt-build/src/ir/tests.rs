use super::*;

#[test]
fn noalias_is_taken_from_mutable_references_alone() {
    let ir = "\
define internal i32 @exchange(ptr noalias noundef align 4 dereferenceable(4) %own, ptr noalias nofree noundef \
readonly align 4 captures(address, read_provenance) dereferenceable(4) %seen) {
  call void @f(ptr dead_on_unwind noalias noundef writable sret([12 x i8]) align 4 captures(address) %a, ptr noalias %b)
  %c = load i32, ptr %own, align 4, !noalias !5
  %d = call noalias ptr @g()
  call void asm \"ptr noalias \", \"\"()
  call void @h(ptr noalias nofree noundef writable align 4 dereferenceable(4) %e)
";
    let found = without_mutable_noalias(ir);
    assert!(found.contains("(ptr noundef align 4 dereferenceable(4) %own, ptr noalias nofree"));
    assert!(found.contains("writable sret([12 x i8]) align 4 captures(address) %a, ptr %b)"));
    assert!(found.contains("ptr dead_on_unwind noalias noundef writable"));
    assert!(found.contains("!noalias !5") && found.contains("noalias ptr @g"));
    assert!(found.contains("asm \"ptr noalias \""), "what is quoted stays");
    assert!(found.contains("@h(ptr nofree noundef writable align 4 dereferenceable(4) %e)"));
}

#[test]
fn entries_take_arrays_where_they_are() {
    let ir = "\
define ptx_kernel void @k([20 x i64] %0, [16 x i32] %1, ptr noundef %2) unnamed_addr #1 {
  store [20 x i64] %0, ptr %7, align 8
  store [16 x i32] %1, ptr %6, align 4
}
define internal void @f([16 x i32] %1) {
  store [16 x i32] %1, ptr %6, align 4
}
";
    assert_eq!(20 * 8, size_of::<Cohort>(), "the example's first parameter");
    let expected = "\
define ptx_kernel void @k([20 x i64] %0, ptr noalias readonly byval([16 x i32]) align 4 %1, ptr noundef %2) \
unnamed_addr #1 {
  store [20 x i64] %0, ptr %7, align 8
  call void @llvm.memcpy.p0.p0.i64(ptr align 4 %6, ptr align 4 %1, i64 64, i1 false)
}
define internal void @f([16 x i32] %1) {
  store [16 x i32] %1, ptr %6, align 4
}
";
    assert_eq!(params_in_memory(ir), expected);
}

#[test]
fn bodies_are_inlined_and_nothing_else_is() {
    let ir = "\
define internal fastcc void @_RNvNvC1k1a14___preempt_body(ptr %x) unnamed_addr #6 !guid !113 {
define internal void @_RNCNvNvC1k1a14___preempt_body0B5_(ptr %x) #6 {
define internal void @_RNvC1k4cold(ptr %x) #6 {
  tail call fastcc void @_RNvNvC1k1a14___preempt_body.specialized.1(ptr %x) #17, !noalias !5
  tail call void @_RNvC1k4cold(ptr %x) #17
attributes #6 = { noinline nounwind }
attributes #17 = { noinline }
";
    let expected = "\
define internal fastcc void @_RNvNvC1k1a14___preempt_body(ptr %x) unnamed_addr #90006 !guid !113 {
define internal void @_RNCNvNvC1k1a14___preempt_body0B5_(ptr %x) #6 {
define internal void @_RNvC1k4cold(ptr %x) #6 {
  tail call fastcc void @_RNvNvC1k1a14___preempt_body.specialized.1(ptr %x) #900017, !noalias !5
  tail call void @_RNvC1k4cold(ptr %x) #17
attributes #6 = { noinline nounwind }
attributes #17 = { noinline }
attributes #90006 = { alwaysinline nounwind }
attributes #900017 = { alwaysinline }
";
    assert_eq!(with_bodies_inlined(ir), expected);
}
