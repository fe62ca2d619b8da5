//! Which engine drives a path where io_uring is forbidden.

mod common;

use common::Scratch;
use coulter_device::open::NO_IO_URING_VARIABLE;
use coulter_device::{AlignedMemory, Engine, OpenError, OpenOptions, blocking, open_path};
use std::process::Command;
use std::{env, fs, thread};

const SIZE: u64 = 1 << 20;

/// Opens a file, uses it, and gives what the device says of itself.
fn describe(engine: Engine) -> Result<(String, String), OpenError> {
    let file = Scratch::new().file("store", SIZE);
    let options = OpenOptions { engine, ..OpenOptions::default() };
    let mut device = open_path(&file.path, &options)?;
    let mut memory = AlignedMemory::zeroed(4096);
    blocking::write(&mut device, 0, &mut memory).expect("it works");
    blocking::flush(&mut device).expect("it works");
    let properties = device.properties();
    Ok((properties.description.clone(), properties.note.clone().unwrap_or_default()))
}

#[test]
fn io_uring_is_taken_where_it_is_allowed() {
    if env::var_os(NO_IO_URING_VARIABLE).is_some() {
        return;
    }
    let forbidden = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if matches!(forbidden.trim(), "1" | "2") {
        println!("skipped, for this system forbids io_uring");
        return;
    }
    let (description, note) = describe(Engine::Automatic).expect("it can be opened");
    assert!(description.ends_with("by io_uring"), "{description}");
    assert_eq!(note, "");
}

#[test]
fn threads_are_taken_where_a_filter_forbids_io_uring() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        // The filter lasts as long as the thread.
        thread::spawn(move || {
            forbid_io_uring(errno);
            let (description, note) = describe(Engine::Automatic).expect("it can be opened");
            assert!(description.ends_with("by threads"), "{description}");
            assert!(note.contains("the system refuses it"), "{note}");
            let error = describe(Engine::Uring).expect_err("io_uring was demanded");
            assert!(matches!(error, OpenError::NoIoUring { .. }), "{error:?}");
            assert_eq!(error.errno(), errno);
            assert!(error.to_string().contains("allow it or use threads"), "{error}");
        })
        .join()
        .expect("the checks hold");
    }
}

/// Makes `io_uring_setup` fail for this thread and those it makes.
fn forbid_io_uring(errno: i32) {
    let statement =
        |code, jump_if, jump_else, k| libc::sock_filter { code, jt: jump_if, jf: jump_else, k };
    let return_code = (libc::BPF_RET | libc::BPF_K) as u16;
    let mut program = [
        // The number of the system call, which is the first field of what a filter sees.
        statement((libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, 0, 0, 0),
        statement(
            (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            0,
            1,
            libc::SYS_io_uring_setup as u32,
        ),
        statement(return_code, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(return_code, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: no pointers.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(result, 0, "no new privileges");
    // SAFETY: the pointer is to a program of the stated length.
    let result =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert_eq!(result, 0, "the filter is taken");
}

/// Not a test of its own: what the next one runs in a process with the variable set.
#[test]
fn print_engine() {
    let (description, note) = describe(Engine::Automatic).expect("it can be opened");
    println!("engine: {description}; {note}");
}

#[test]
fn threads_are_taken_where_the_environment_demands_it() {
    let run = |value: &str| {
        let output = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", "print_engine", "--nocapture"])
            .env(NO_IO_URING_VARIABLE, value)
            .output()
            .expect("this program runs");
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("text")
    };
    let text = run("1");
    assert!(text.contains("by threads"), "{text}");
    assert!(text.contains("COULTER_NO_IO_URING is set"), "{text}");
    for value in ["", "0"] {
        let text = run(value);
        assert!(!text.contains("COULTER_NO_IO_URING is set"), "{text}");
    }
}
