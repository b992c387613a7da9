use super::*;

const UNKNOWN: ChildEnd = ChildEnd { code: None, signal: None };
const KILLED_FOR_MEMORY: ChildEnd = ChildEnd { code: None, signal: Some(libc::SIGKILL) };

fn end(code: i32) -> ChildEnd {
    ChildEnd { code: Some(code), signal: None }
}

fn out_of_memory() -> Counters {
    Counters { oom_kills: 1, ..Counters::default() }
}

#[test]
fn what_execd_told_is_the_end_of_the_main_process() {
    assert_eq!(main_end(end(KILLED), Told::End, out_of_memory()), end(KILLED));
    assert_eq!(main_end(end(3), Told::Unheard, out_of_memory()), end(3));
}

#[test]
fn a_kernel_that_was_lost_says_nothing_of_its_programs() {
    assert_eq!(main_end(end(2), Told::Nothing, Counters::default()), UNKNOWN);
    assert_eq!(main_end(end(KILLED), Told::Nothing, Counters::default()), UNKNOWN);
}

#[test]
fn a_kernel_that_was_lost_when_memory_ran_out_was_killed_for_it() {
    assert_eq!(main_end(end(KILLED), Told::Nothing, out_of_memory()), KILLED_FOR_MEMORY);
    assert_eq!(main_end(end(KILLED), Told::Unheard, out_of_memory()), KILLED_FOR_MEMORY);
}
