; Relaxed atomic operations for the threads of the device: core's are for the whole system, and some releases of LLVM
; forget the scope of those. Inline assembly would always use generic addresses.

define i32 @preempt_atomic_load_32(ptr %p) alwaysinline nounwind {
  %value = load atomic i32, ptr %p syncscope("device") monotonic, align 4
  ret i32 %value
}

define void @preempt_atomic_store_32(ptr %p, i32 %value) alwaysinline nounwind {
  store atomic i32 %value, ptr %p syncscope("device") monotonic, align 4
  ret void
}

define i32 @preempt_atomic_cas_32(ptr %p, i32 %current, i32 %new) alwaysinline nounwind {
  %both = cmpxchg ptr %p, i32 %current, i32 %new syncscope("device") monotonic monotonic
  %before = extractvalue { i32, i1 } %both, 0
  ret i32 %before
}

define i32 @preempt_atomic_xchg_32(ptr %p, i32 %value) alwaysinline nounwind {
  %before = atomicrmw xchg ptr %p, i32 %value syncscope("device") monotonic
  ret i32 %before
}

define i32 @preempt_atomic_add_32(ptr %p, i32 %value) alwaysinline nounwind {
  %before = atomicrmw add ptr %p, i32 %value syncscope("device") monotonic
  ret i32 %before
}

define i32 @preempt_atomic_and_32(ptr %p, i32 %value) alwaysinline nounwind {
  %before = atomicrmw and ptr %p, i32 %value syncscope("device") monotonic
  ret i32 %before
}

define i32 @preempt_atomic_or_32(ptr %p, i32 %value) alwaysinline nounwind {
  %before = atomicrmw or ptr %p, i32 %value syncscope("device") monotonic
  ret i32 %before
}

define i32 @preempt_atomic_xor_32(ptr %p, i32 %value) alwaysinline nounwind {
  %before = atomicrmw xor ptr %p, i32 %value syncscope("device") monotonic
  ret i32 %before
}

define i32 @preempt_atomic_min_32(ptr %p, i32 %value) alwaysinline nounwind {
  %before = atomicrmw min ptr %p, i32 %value syncscope("device") monotonic
  ret i32 %before
}

define i32 @preempt_atomic_max_32(ptr %p, i32 %value) alwaysinline nounwind {
  %before = atomicrmw max ptr %p, i32 %value syncscope("device") monotonic
  ret i32 %before
}

define i32 @preempt_atomic_umin_32(ptr %p, i32 %value) alwaysinline nounwind {
  %before = atomicrmw umin ptr %p, i32 %value syncscope("device") monotonic
  ret i32 %before
}

define i32 @preempt_atomic_umax_32(ptr %p, i32 %value) alwaysinline nounwind {
  %before = atomicrmw umax ptr %p, i32 %value syncscope("device") monotonic
  ret i32 %before
}

define i64 @preempt_atomic_load_64(ptr %p) alwaysinline nounwind {
  %value = load atomic i64, ptr %p syncscope("device") monotonic, align 8
  ret i64 %value
}

define void @preempt_atomic_store_64(ptr %p, i64 %value) alwaysinline nounwind {
  store atomic i64 %value, ptr %p syncscope("device") monotonic, align 8
  ret void
}

define i64 @preempt_atomic_cas_64(ptr %p, i64 %current, i64 %new) alwaysinline nounwind {
  %both = cmpxchg ptr %p, i64 %current, i64 %new syncscope("device") monotonic monotonic
  %before = extractvalue { i64, i1 } %both, 0
  ret i64 %before
}

define i64 @preempt_atomic_xchg_64(ptr %p, i64 %value) alwaysinline nounwind {
  %before = atomicrmw xchg ptr %p, i64 %value syncscope("device") monotonic
  ret i64 %before
}

define i64 @preempt_atomic_add_64(ptr %p, i64 %value) alwaysinline nounwind {
  %before = atomicrmw add ptr %p, i64 %value syncscope("device") monotonic
  ret i64 %before
}

define i64 @preempt_atomic_and_64(ptr %p, i64 %value) alwaysinline nounwind {
  %before = atomicrmw and ptr %p, i64 %value syncscope("device") monotonic
  ret i64 %before
}

define i64 @preempt_atomic_or_64(ptr %p, i64 %value) alwaysinline nounwind {
  %before = atomicrmw or ptr %p, i64 %value syncscope("device") monotonic
  ret i64 %before
}

define i64 @preempt_atomic_xor_64(ptr %p, i64 %value) alwaysinline nounwind {
  %before = atomicrmw xor ptr %p, i64 %value syncscope("device") monotonic
  ret i64 %before
}

define i64 @preempt_atomic_min_64(ptr %p, i64 %value) alwaysinline nounwind {
  %before = atomicrmw min ptr %p, i64 %value syncscope("device") monotonic
  ret i64 %before
}

define i64 @preempt_atomic_max_64(ptr %p, i64 %value) alwaysinline nounwind {
  %before = atomicrmw max ptr %p, i64 %value syncscope("device") monotonic
  ret i64 %before
}

define i64 @preempt_atomic_umin_64(ptr %p, i64 %value) alwaysinline nounwind {
  %before = atomicrmw umin ptr %p, i64 %value syncscope("device") monotonic
  ret i64 %before
}

define i64 @preempt_atomic_umax_64(ptr %p, i64 %value) alwaysinline nounwind {
  %before = atomicrmw umax ptr %p, i64 %value syncscope("device") monotonic
  ret i64 %before
}

; The instruction takes subnormal numbers in global memory for 0. Where LLVM knows of that, it would rather exchange in a
; loop, which no program for GPUs expects of an addition. The space is known here once kernels are inlined.
declare i1 @llvm.nvvm.isspacep.shared(ptr)

define float @preempt_atomic_add_f32(ptr %p, float %value) alwaysinline nounwind {
  %is_shared = call i1 @llvm.nvvm.isspacep.shared(ptr %p)
  br i1 %is_shared, label %in_shared, label %in_global

in_shared:
  %shared = addrspacecast ptr %p to ptr addrspace(3)
  %from_shared = atomicrmw fadd ptr addrspace(3) %shared, float %value syncscope("device") monotonic
  ret float %from_shared

in_global:
  %global = addrspacecast ptr %p to ptr addrspace(1)
  %from_global = call float asm sideeffect "atom.relaxed.gpu.global.add.f32 $0, [$1], $2;", "=f,l,f,~{memory}"(ptr addrspace(1) %global, float %value)
  ret float %from_global
}

define double @preempt_atomic_add_f64(ptr %p, double %value) alwaysinline nounwind {
  %before = atomicrmw fadd ptr %p, double %value syncscope("device") monotonic
  ret double %before
}
