; Operations that Rust cannot express, linked into every kernels crate and inlined.

; Dynamic shared memory, whose size the launch gives. The kernel's shared arrays are offsets into it.
; Rust has no statics in address space 3, and only accesses that LLVM sees to go there become LDS and STS.
@preempt_smem = external addrspace(3) global [0 x i8], align 16

; Shared memory of the worker loop: two claims, used in turn, and the elected thread's notes.
@preempt_slot = internal addrspace(3) global [14 x i64] undef, align 16

; The watch of a block with yield points. Kernels without yield points do not have it.
@preempt_yields = internal addrspace(3) global [1 x i64] undef, align 16

define ptr @preempt_shared_base() alwaysinline nounwind memory(none) {
  ret ptr addrspacecast (ptr addrspace(3) @preempt_smem to ptr)
}

define ptr @preempt_loop_slot() alwaysinline nounwind memory(none) {
  ret ptr addrspacecast (ptr addrspace(3) @preempt_slot to ptr)
}

; An asynchronous copy of 16 bytes of global memory, past the L1 cache.
declare void @llvm.nvvm.cp.async.cg.shared.global.16(ptr addrspace(3), ptr addrspace(1))

define void @preempt_start_copy(ptr %from, ptr %to) alwaysinline nounwind {
  %global = addrspacecast ptr %from to ptr addrspace(1)
  %shared = addrspacecast ptr %to to ptr addrspace(3)
  call void @llvm.nvvm.cp.async.cg.shared.global.16(ptr addrspace(3) %shared, ptr addrspace(1) %global)
  ret void
}

define ptr @preempt_yield_word() alwaysinline nounwind memory(none) {
  ret ptr addrspacecast (ptr addrspace(3) @preempt_yields to ptr)
}

; A pointer to global memory from a number, as pointers in a struct argument are. Through a generic
; pointer, each atomic operation would have a second version for shared memory.
define ptr @preempt_global(i64 %address) alwaysinline nounwind memory(none) {
  %global = inttoptr i64 %address to ptr addrspace(1)
  %generic = addrspacecast ptr addrspace(1) %global to ptr
  ret ptr %generic
}

; A fence for the threads of this device; core's fences are for the whole system.
define void @preempt_device_fence() alwaysinline nounwind {
  fence syncscope("device") seq_cst
  ret void
}

; A fence for the threads of this device, of release and acquire only.
define void @preempt_device_fence_acq_rel() alwaysinline nounwind {
  fence syncscope("device") acq_rel
  ret void
}

; Fences for the threads of a block.
define void @preempt_block_fence() alwaysinline nounwind {
  fence syncscope("block") seq_cst
  ret void
}

define void @preempt_block_fence_acq_rel() alwaysinline nounwind {
  fence syncscope("block") acq_rel
  ret void
}

; The lanes in the mask, if all of them have the same value, else 0.
declare { i32, i1 } @llvm.nvvm.match.all.sync.i32p(i32, i32)
declare { i32, i1 } @llvm.nvvm.match.all.sync.i64p(i32, i64)

define i32 @preempt_match_all_32(i32 %mask, i32 %value) alwaysinline convergent nounwind {
  %both = call { i32, i1 } @llvm.nvvm.match.all.sync.i32p(i32 %mask, i32 %value)
  %lanes = extractvalue { i32, i1 } %both, 0
  ret i32 %lanes
}

define i32 @preempt_match_all_64(i32 %mask, i64 %value) alwaysinline convergent nounwind {
  %both = call { i32, i1 } @llvm.nvvm.match.all.sync.i64p(i32 %mask, i64 %value)
  %lanes = extractvalue { i32, i1 } %both, 0
  ret i32 %lanes
}
