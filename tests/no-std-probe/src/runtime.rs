//! The little that a program needs where there is no libc: an entry point, a panic handler and the
//! memory functions that the compiler calls.

use core::arch::global_asm;
use core::panic::PanicInfo;

// The entry point aligns the stack, calls `probe` and exits with its result. It is assembly because the
// kernel enters it without a return address, which no Rust function expects.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "and rsp, -16",
    "call probe",
    "mov edi, eax",
    "mov eax, 60",
    "syscall",
);
#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
global_asm!(".globl _start", "_start:", "mov x29, #0", "bl probe", "mov x8, #93", "svc #0");

#[panic_handler]
fn panic(_: &PanicInfo) -> ! {
    loop {}
}

// `core` is compiled for unwinding and names this; with panic = "abort" nothing calls it.
// SAFETY: std, which defines it otherwise, is not linked.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

// SAFETY: libc, which defines it otherwise, is not linked; the caller gives `n` writable bytes at `to` and
// `n` readable bytes at `from`, apart from each other.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    for i in 0..n {
        // SAFETY: i < n.
        unsafe { *to.add(i) = *from.add(i) };
    }
    to
}

// SAFETY: as for `memcpy`, but the two may overlap: bytes are taken from the end that is overwritten last.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, n: usize) -> *mut u8 {
    for step in 0..n {
        let i = if from.addr() < to.addr() { n - 1 - step } else { step };
        // SAFETY: i < n.
        unsafe { *to.add(i) = *from.add(i) };
    }
    to
}

// SAFETY: libc is not linked; the caller gives `n` writable bytes at `to`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, n: usize) -> *mut u8 {
    for i in 0..n {
        // SAFETY: i < n.
        unsafe { *to.add(i) = byte as u8 };
    }
    to
}

// SAFETY: libc is not linked; the caller gives `n` readable bytes at `a` and at `b`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    for i in 0..n {
        // SAFETY: i < n.
        let (x, y) = unsafe { (*a.add(i), *b.add(i)) };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
    }
    0
}

// SAFETY: as for `memcmp`.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, n: usize) -> i32 {
    // SAFETY: the caller's promise is the same.
    unsafe { memcmp(a, b, n) }
}
