//! The queue without threads: the test is its worker, one command at a time.

use super::{Command, Queue};
use crate::device::DeviceError;
use crate::sync::Arc;

fn nothing() -> Command {
    Command::Run(Box::new(|| ()))
}

fn lost(what: &str) -> DeviceError {
    DeviceError::Lost { what: what.to_owned() }
}

#[test]
fn marks_follow_the_count() {
    let queue = Arc::new(Queue::new());
    let (empty, _) = Queue::mark(&queue);
    assert_eq!(empty.outcome(), Some(Ok(())));
    queue.submit(nothing()).unwrap();
    let (first, _) = Queue::mark(&queue);
    queue.submit(nothing()).unwrap();
    let (second, _) = Queue::mark(&queue);
    for expected in [(None, None), (Some(Ok(())), None)] {
        assert_eq!((first.outcome(), second.outcome()), expected);
        assert!(queue.next().is_some());
        // Begun is not ended.
        assert_eq!((first.outcome(), second.outcome()), expected);
        queue.end();
    }
    second.wait().unwrap();
    queue.close();
    assert!(queue.next().is_none());
}

#[test]
fn a_failure_splits_the_marks_at_the_command_under_way() {
    let queue = Arc::new(Queue::new());
    let marks = [(); 3].map(|()| {
        queue.submit(nothing()).unwrap();
        Queue::mark(&queue).0
    });
    assert!(queue.next().is_some());
    queue.end();
    assert!(queue.next().is_some());
    queue.fail(lost("second"));
    queue.fail(lost("again"));
    assert_eq!(marks[0].wait(), Ok(()));
    assert_eq!(marks[1].wait(), Err(lost("second")));
    assert_eq!(marks[2].wait(), Err(lost("second")));
    assert_eq!(queue.submit(nothing()), Err(lost("second")));
    let (later, usable) = Queue::mark(&queue);
    assert_eq!((usable, later.wait()), (Err(lost("second")), Err(lost("second"))));
    queue.close();
    assert!(queue.next().is_none(), "what came after a failure is not run");
}

#[test]
fn commands_are_dropped_unlocked() {
    /// Looks at the queue when dropped, which needs its lock.
    struct Looks(Arc<Queue>);
    impl Drop for Looks {
        fn drop(&mut self) {
            assert!(Queue::mark(&self.0).1.is_err());
        }
    }
    let queue = Arc::new(Queue::new());
    let looks = Looks(Arc::clone(&queue));
    queue.submit(Command::Run(Box::new(move || drop(looks)))).unwrap();
    queue.fail(lost("all"));
}
