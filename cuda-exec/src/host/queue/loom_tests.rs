//! Every order of the threads that meet at a queue, by loom: `cargo xtask loom`.
//!
//! Workers are those of [`worker`](super::super::worker), less the thread's name.

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::{Command, Mark, Queue};
use crate::device::DeviceError;
use crate::host::worker::serve;
use crate::sync::Arc;

/// Preemptions per order; without a bound the models with three threads take minutes (`LOOM_MAX_PREEMPTIONS` sets another).
/// Two find nearly all defects known of such code (CHESS, Musuvathi and Qadeer, PLDI 2007).
const PREEMPTIONS: usize = 3;

fn all_orders(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound.get_or_insert(PREEMPTIONS);
    model.check(test);
}

/// Where the tests' work leaves its trace.
type Trace = Arc<AtomicUsize>;

fn start() -> (Arc<Queue>, thread::JoinHandle<()>) {
    let queue = Arc::new(Queue::new());
    let served = Arc::clone(&queue);
    (queue, thread::spawn(move || serve(&served)))
}

/// Work that finds `before` in the trace and leaves `after`.
fn step(trace: &Trace, before: usize, after: usize) -> Command {
    let trace = Arc::clone(trace);
    Command::Run(Box::new(move || assert_eq!(trace.swap(after, Ordering::Relaxed), before)))
}

fn marked(queue: &Arc<Queue>) -> Mark {
    let (mark, usable) = Queue::mark(queue);
    usable.expect("a queue that has not failed");
    mark
}

fn lost() -> DeviceError {
    DeviceError::Lost { what: "on purpose".to_owned() }
}

#[test]
fn work_runs_in_order_and_before_its_mark() {
    all_orders(|| {
        let trace = Trace::default();
        let (queue, worker) = start();
        queue.submit(step(&trace, 0, 1)).unwrap();
        let first = marked(&queue);
        queue.submit(step(&trace, 1, 2)).unwrap();
        let second = marked(&queue);
        first.wait().unwrap();
        assert!(trace.load(Ordering::Relaxed) >= 1);
        second.wait().unwrap();
        assert_eq!(trace.load(Ordering::Relaxed), 2);
        assert_eq!(first.outcome(), Some(Ok(())));
        queue.close();
        worker.join().unwrap();
    });
}

#[test]
fn closing_lets_the_work_end() {
    all_orders(|| {
        let trace = Trace::default();
        let (queue, worker) = start();
        queue.submit(step(&trace, 0, 1)).unwrap();
        queue.close();
        assert!(queue.submit(step(&trace, 9, 9)).is_err());
        worker.join().unwrap();
        assert_eq!(trace.load(Ordering::Relaxed), 1);
        marked_closed(&queue).wait().unwrap();
    });
}

fn marked_closed(queue: &Arc<Queue>) -> Mark {
    Queue::mark(queue).0
}

#[test]
fn a_stream_waits_for_another() {
    all_orders(|| {
        let trace = Trace::default();
        let [(first, first_worker), (second, second_worker)] = [start(), start()];
        first.submit(step(&trace, 0, 1)).unwrap();
        let event = marked(&first);
        second.submit(Command::Wait(event)).unwrap();
        second.submit(step(&trace, 1, 2)).unwrap();
        marked(&second).wait().unwrap();
        assert_eq!(trace.load(Ordering::Relaxed), 2);
        first.close();
        second.close();
        first_worker.join().unwrap();
        second_worker.join().unwrap();
    });
}

#[test]
fn an_earlier_mark_is_not_moved_by_a_later_one() {
    all_orders(|| {
        let (queue, worker) = start();
        let [reached, go] = [(); 2].map(|()| Trace::default());
        queue.submit(step(&reached, 0, 1)).unwrap();
        let earlier = marked(&queue);
        let gate = Arc::clone(&go);
        queue
            .submit(Command::Run(Box::new(move || {
                while gate.load(Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
            })))
            .unwrap();
        let later = marked(&queue);
        // The later mark waits for us, so waiting for it here would never end.
        earlier.wait().unwrap();
        assert_eq!(later.outcome(), None);
        go.store(1, Ordering::Release);
        later.wait().unwrap();
        queue.close();
        worker.join().unwrap();
    });
}

#[test]
fn two_threads_submit_and_wait() {
    all_orders(|| {
        let (queue, worker) = start();
        let count = Trace::default();
        let add = |queue: &Queue, count: &Trace| {
            let count = Arc::clone(count);
            queue
                .submit(Command::Run(Box::new(move || {
                    count.fetch_add(1, Ordering::Relaxed);
                })))
                .unwrap();
        };
        let other = {
            let (queue, count) = (Arc::clone(&queue), Arc::clone(&count));
            thread::spawn(move || add(&queue, &count))
        };
        add(&queue, &count);
        let own = marked(&queue);
        own.wait().unwrap();
        assert!(count.load(Ordering::Relaxed) >= 1);
        other.join().unwrap();
        marked(&queue).wait().unwrap();
        assert_eq!(count.load(Ordering::Relaxed), 2);
        queue.close();
        worker.join().unwrap();
    });
}

#[test]
fn failure_reaches_who_waits_and_spares_what_came_before() {
    all_orders(|| {
        let trace = Trace::default();
        let [failing, (second, second_worker)] = [start(), start()];
        let (first, first_worker) = failing;
        first.submit(step(&trace, 0, 1)).unwrap();
        let before = marked(&first);
        // Fails as what it waits for has failed.
        let doomed = Arc::new(Queue::new());
        doomed.fail(lost());
        first.submit(Command::Wait(marked_closed(&doomed))).unwrap();
        let (after, _) = Queue::mark(&first);
        second.submit(Command::Wait(after.clone())).unwrap();
        let (there, _) = Queue::mark(&second);
        assert_eq!(there.wait(), Err(lost()));
        assert_eq!(after.wait(), Err(lost()));
        assert_eq!(before.wait(), Ok(()));
        assert_eq!(first.submit(step(&trace, 9, 9)), Err(lost()));
        first.close();
        second.close();
        first_worker.join().unwrap();
        second_worker.join().unwrap();
        assert_eq!(trace.load(Ordering::Relaxed), 1);
    });
}

/// The negative control: without waiting for the mark, some order finds the work undone.
#[test]
#[should_panic(expected = "too early")]
fn an_order_without_the_wait_is_found() {
    all_orders(|| {
        let trace = Trace::default();
        let (queue, worker) = start();
        queue.submit(step(&trace, 0, 1)).unwrap();
        let found = trace.load(Ordering::Relaxed);
        queue.close();
        worker.join().unwrap();
        assert_eq!(found, 1, "too early");
    });
}
