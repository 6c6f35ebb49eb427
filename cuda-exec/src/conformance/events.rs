//! Events: what they mark, recorded again, destroyed.

use super::Outcome;
use super::bench::{Bench, check, same};

pub(super) fn an_event_not_recorded_is_done(bench: &Bench) -> Result<(), Outcome> {
    let event = bench.event()?;
    let stream = bench.stream()?;
    check(bench.device().is_done(*event)?, "it is done")?;
    bench.device().wait(*event)?;
    bench.device().stream_wait(*stream, *event)?;
    bench.device().synchronize(*stream)?;
    Ok(())
}

pub(super) fn an_event_follows_its_work(bench: &Bench) -> Result<(), Outcome> {
    let (early, late) = (bench.event()?, bench.event()?);
    let stream = bench.stream()?;
    bench.device().record(*early, *stream)?;
    let gate = bench.gate(*stream)?;
    bench.device().record(*late, *stream)?;
    bench.becomes_done(*early)?;
    check(!bench.device().is_done(*late)?, "not done before its work")?;
    gate.open()?;
    bench.becomes_done(*late)?;
    bench.device().wait(*late)?;
    check(bench.device().is_done(*late)?, "it stays done")
}

/// Two streams pass one buffer back and forth.
pub(super) fn streams_meet_through_events(bench: &Bench) -> Result<(), Outcome> {
    const ROUNDS: u64 = 48;
    let bytes = bench.large() / 4;
    let sources = (0..ROUNDS).map(|i| bench.filled(bytes, i)).collect::<Result<Vec<_>, _>>()?;
    let results = (0..ROUNDS).map(|_| bench.pinned(bytes)).collect::<Result<Vec<_>, _>>()?;
    let memory = bench.memory(bytes)?;
    let (full, empty) = (bench.event()?, bench.event()?);
    let (inwards, outwards) = (bench.stream()?, bench.stream()?);
    let gate = bench.gate(*inwards)?;
    for (source, result) in sources.iter().zip(&results) {
        bench.device().stream_wait(*inwards, *empty)?;
        bench.copy_in(**source, *memory, *inwards)?;
        bench.device().record(*full, *inwards)?;
        bench.device().stream_wait(*outwards, *full)?;
        bench.copy_out(*memory, **result, *outwards)?;
        bench.device().record(*empty, *outwards)?;
    }
    gate.open()?;
    bench.device().wait(*empty)?;
    sources
        .iter()
        .zip(&results)
        .try_for_each(|(a, b)| same(&b.read(), &a.read(), "passed between two streams"))
}

pub(super) fn recorded_again_on_its_stream(bench: &Bench) -> Result<(), Outcome> {
    let (event, through) = (bench.event()?, bench.event()?);
    let (stream, waits) = (bench.stream()?, bench.stream()?);
    let first = bench.gate(*stream)?;
    bench.device().record(*event, *stream)?;
    bench.device().stream_wait(*waits, *event)?;
    bench.device().record(*through, *waits)?;
    let second = bench.gate(*stream)?;
    bench.device().record(*event, *stream)?;
    check(!bench.device().is_done(*through)?, "the first mark is waited for")?;
    first.open()?;
    // The waiter waits for the first mark only.
    bench.device().wait(*through)?;
    check(!bench.device().is_done(*event)?, "the event is at its second mark")?;
    second.open()?;
    bench.device().wait(*event)?;
    Ok(())
}

pub(super) fn recorded_again_on_another_stream(bench: &Bench) -> Result<(), Outcome> {
    let (event, through) = (bench.event()?, bench.event()?);
    let (held, waits, idle) = (bench.stream()?, bench.stream()?, bench.stream()?);
    let gate = bench.gate(*held)?;
    bench.device().record(*event, *held)?;
    bench.device().stream_wait(*waits, *event)?;
    bench.device().record(*through, *waits)?;
    bench.device().record(*event, *idle)?;
    bench.device().wait(*event)?;
    check(!bench.device().is_done(*through)?, "who waited for the first mark still waits for it")?;
    gate.open()?;
    bench.device().wait(*through)?;
    Ok(())
}

pub(super) fn destroyed_while_waited_on(bench: &Bench) -> Result<(), Outcome> {
    let (source, memory, result) = (bench.filled(4097, 1)?, bench.memory(4097)?, bench.pinned(4097)?);
    let through = bench.event()?;
    let (held, waits, idle) = (bench.stream()?, bench.stream()?, bench.stream()?);
    let gate = bench.gate(*held)?;
    bench.copy_in(*source, *memory, *held)?;
    let event = bench.device().create_event()?;
    bench.device().record(event, *held)?;
    bench.device().stream_wait(*waits, event)?;
    bench.copy_out(*memory, *result, *waits)?;
    bench.device().record(*through, *waits)?;
    bench.device().destroy_event(event)?;
    // One that may take its place must not end the wait.
    let successor = bench.event()?;
    bench.device().record(*successor, *idle)?;
    bench.device().wait(*successor)?;
    check(!bench.device().is_done(*through)?, "the wait outlives its event")?;
    gate.open()?;
    bench.device().wait(*through)?;
    same(&result.read(), &source.read(), "behind a destroyed event")
}

pub(super) fn thousands_of_events(bench: &Bench) -> Result<(), Outcome> {
    let (source, memory) = (bench.filled(64, 1)?, bench.memory(64)?);
    let events = (0..3000).map(|_| bench.event()).collect::<Result<Vec<_>, _>>()?;
    let streams = [bench.stream()?, bench.stream()?];
    for round in 0..2 {
        for (i, event) in events.iter().enumerate() {
            let (here, there) = (&streams[(i + round) % 2], &streams[(i + round + 1) % 2]);
            bench.device().record(**event, **here)?;
            bench.device().stream_wait(**there, **event)?;
            if i % 16 == 0 {
                bench.copy_in(*source, *memory, **here)?;
            }
        }
    }
    streams.iter().try_for_each(|stream| bench.device().synchronize(**stream))?;
    for event in &events {
        check(bench.device().is_done(**event)?, "all are done when their streams are")?;
    }
    Ok(())
}

pub(super) fn work_after_a_wait_waits_too(bench: &Bench) -> Result<(), Outcome> {
    let (marker, behind) = (bench.event()?, bench.event()?);
    let (held, waits) = (bench.stream()?, bench.stream()?);
    let gate = bench.gate(*held)?;
    bench.device().record(*marker, *held)?;
    bench.device().stream_wait(*waits, *marker)?;
    bench.device().record(*behind, *waits)?;
    std::thread::sleep(std::time::Duration::from_millis(5));
    check(!bench.device().is_done(*behind)?, "an event behind a wait is not done before what is waited for")?;
    gate.open()?;
    bench.becomes_done(*behind)
}
