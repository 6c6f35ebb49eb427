//! `bagualu solve budget`: Algorithm 1 over a schedule (design §10).

use std::collections::BTreeMap;

use bagualu_core::budget::{Budget, BudgetError, Share, Unit};
use bagualu_core::schedule::Event;
use serde::{Deserialize, Serialize};

use super::read::{self, Count, Object, UniqueMap, present};
use crate::{Error, output};

/// Forwards of one instance: a step costs time in proportion to the rest of the schedule.
pub const MAX_FORWARDS: usize = 1 << 14;

/// How shares are weighted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Method {
    /// The paper's: equal shares of what is free
    #[default]
    Even,
    /// In proportion to each forward's demand_bytes
    Proportional,
}

/// What every forward may hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Answer {
    /// In the order of the schedule.
    pub forwards: Vec<Forward>,
    /// The largest sum of held bytes.
    pub peak_bytes: u64,
}

/// What one forward may hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Forward {
    /// Its name in the instance.
    pub id: String,
    /// Capacity less what is held before it.
    pub free_bytes: u64,
    /// Its share.
    pub quota_bytes: u64,
    /// Its hard bound.
    pub limit_bytes: u64,
    /// What it holds: as given, else its quota.
    pub held_bytes: u64,
}

/// Solves the instance `json`.
pub fn solve(json: &[u8], method: Method) -> Result<Answer, Error> {
    let instance = Instance::parse(json)?;
    let mut units = instance.units.clone();
    let mut budget = instance.budget(instance.capacity, method, &mut units)?;
    let mut answer = Answer { forwards: Vec::new(), peak_bytes: 0 };
    for (at, event) in instance.events.iter().enumerate() {
        let Event::Forward(unit) = *event else {
            budget.release().map_err(refused)?;
            continue;
        };
        let allowance = budget.forward().map_err(refused)?;
        let id = &instance.ids[unit as usize];
        if allowance.limit < instance.units[unit as usize].floor {
            let needed = instance.needed(at, &answer.forwards)?;
            return Err(Error::infeasible(format!("the forward of {id:?} needs"), needed, instance.capacity));
        }
        let held = instance.held[unit as usize].unwrap_or(allowance.quota);
        budget.launch(held).map_err(refused)?;
        if budget.held() > instance.capacity {
            let what = format!("with the forward of {id:?} the units in flight hold");
            return Err(Error::infeasible(what, budget.held(), instance.capacity));
        }
        answer.forwards.push(Forward {
            id: id.clone(),
            free_bytes: allowance.free,
            quota_bytes: allowance.quota,
            limit_bytes: allowance.limit,
            held_bytes: held,
        });
    }
    answer.peak_bytes = budget.peak();
    Ok(answer)
}

/// The answer for people.
pub fn describe(answer: &Answer) -> String {
    let mut rows = output::table(["forward", "free", "quota", "limit", "held"]);
    for forward in &answer.forwards {
        let bytes = [forward.free_bytes, forward.quota_bytes, forward.limit_bytes, forward.held_bytes];
        rows.add_row(std::iter::once(forward.id.clone()).chain(bytes.map(output::bytes)));
    }
    format!("{rows}\npeak {}\n", output::bytes(answer.peak_bytes))
}

/// An instance as written.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Text {
    capacity_bytes: Count,
    events: Vec<Object<EventText>>,
    #[serde(default)]
    held_bytes: UniqueMap<Count>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct EventText {
    #[serde(default, deserialize_with = "present")]
    forward: Option<String>,
    #[serde(default, deserialize_with = "present")]
    backward: Option<String>,
    #[serde(default, deserialize_with = "present")]
    floor_bytes: Option<Count>,
    #[serde(default, deserialize_with = "present")]
    demand_bytes: Option<Count>,
}

/// A checked instance: events over units numbered in the order of their forwards.
#[derive(Debug)]
struct Instance {
    capacity: u64,
    events: Vec<Event>,
    ids: Vec<String>,
    units: Vec<Unit>,
    held: Vec<Option<u64>>,
}

impl Instance {
    fn parse(json: &[u8]) -> Result<Self, Error> {
        let text: Text = read::parse(json)?;
        let mut instance = Self {
            capacity: text.capacity_bytes.0,
            events: Vec::with_capacity(text.events.len()),
            ids: Vec::new(),
            units: Vec::new(),
            held: Vec::new(),
        };
        let mut indices = BTreeMap::new();
        for (at, Object(event)) in text.events.into_iter().enumerate() {
            let path = format!("events[{at}]");
            let event = instance.event(event, &path, &mut indices)?;
            instance.events.push(event);
        }
        for (id, Count(held)) in text.held_bytes.0 {
            let unit = indices.get(&id).ok_or_else(|| {
                let problem = format!("no forward {id:?} in events");
                Error::bad_input(format!("held_bytes.{id}"), problem, "name a forward")
            })?;
            instance.held[unit.unit as usize] = Some(held);
        }
        Ok(instance)
    }

    fn event(
        &mut self,
        event: EventText,
        path: &str,
        indices: &mut BTreeMap<String, Seen>,
    ) -> Result<Event, Error> {
        match (event.forward, event.backward) {
            (Some(id), None) => {
                let floor = event.floor_bytes.ok_or_else(|| {
                    Error::bad_input(path, format!("forward {id:?} without floor_bytes"), "give its floor")
                })?;
                let unit = self.launch(id, path, indices)?;
                let mut state = Unit::new(floor.0);
                state.demand = event.demand_bytes.unwrap_or(floor).0;
                self.units.push(state);
                Ok(Event::Forward(unit))
            }
            (None, Some(id)) => {
                let sizes = [("floor_bytes", event.floor_bytes), ("demand_bytes", event.demand_bytes)];
                if let Some((name, _)) = sizes.iter().find(|s| s.1.is_some()) {
                    let field = format!("{path}.{name}");
                    return Err(Error::bad_input(field, "given for a backward", "give it with the forward"));
                }
                Ok(Event::Backward(retire(&id, path, indices)?))
            }
            (both, _) => {
                let problem =
                    if both.is_some() { "both forward and backward" } else { "neither forward nor backward" };
                Err(Error::bad_input(path, problem, "name one of the two"))
            }
        }
    }

    /// The number of the unit that `id` launches.
    fn launch(&mut self, id: String, path: &str, indices: &mut BTreeMap<String, Seen>) -> Result<u32, Error> {
        if self.ids.len() == MAX_FORWARDS {
            let problem = format!("more than {MAX_FORWARDS} forwards");
            return Err(Error::bad_input("events", problem, "give one iteration of one rank"));
        }
        let unit = self.ids.len() as u32;
        if indices.insert(id.clone(), Seen { unit, done: false }).is_some() {
            let problem = format!("a second forward of {id:?}");
            return Err(Error::bad_input(format!("{path}.forward"), problem, "give each unit its own name"));
        }
        self.ids.push(id);
        self.held.push(None);
        Ok(unit)
    }

    fn budget<'a>(
        &'a self,
        capacity: u64,
        method: Method,
        units: &'a mut [Unit],
    ) -> Result<Budget<'a>, Error> {
        let share = match method {
            Method::Even => Share::Even,
            Method::Proportional => Share::Proportional,
        };
        Budget::new(capacity, share, &self.events, units).map_err(refused)
    }

    /// The smallest capacity at which the forward at `at` would have its floor, those before it holding
    /// what they held.
    fn needed(&self, at: usize, before: &[Forward]) -> Result<u64, Error> {
        let mut units = self.units.clone();
        // A limit is the capacity less what does not depend on it. This capacity makes none negative.
        let wide = u64::MAX;
        let mut budget = self.budget(wide, Method::Even, &mut units)?;
        let mut held = before.iter().map(|f| f.held_bytes);
        for event in &self.events[..at] {
            match event {
                Event::Forward(_) => budget.launch(held.next().unwrap_or(0)).map_err(refused)?,
                Event::Backward(_) => drop(budget.release().map_err(refused)?),
            }
        }
        let Event::Forward(unit) = self.events[at] else { return Ok(0) };
        let limit = budget.forward().map_err(refused)?.limit;
        Ok((wide - limit).saturating_add(self.units[unit as usize].floor))
    }
}

/// A unit seen so far.
#[derive(Debug)]
struct Seen {
    unit: u32,
    done: bool,
}

/// The number of the unit whose backward `id` is.
fn retire(id: &str, path: &str, indices: &mut BTreeMap<String, Seen>) -> Result<u32, Error> {
    let field = || format!("{path}.backward");
    let seen = indices.get_mut(id).ok_or_else(|| {
        Error::bad_input(field(), format!("no forward {id:?} before it"), "list the forward first")
    })?;
    if seen.done {
        return Err(Error::bad_input(field(), format!("a second backward of {id:?}"), "list it once"));
    }
    seen.done = true;
    Ok(seen.unit)
}

fn refused(error: BudgetError) -> Error {
    match error {
        BudgetError::Infeasible { needed, capacity } => {
            Error::infeasible("the floors alone hold", needed, capacity)
        }
        BudgetError::Overflow => Error::bad_input(
            "instance",
            "the sum of floors or of held bytes passes 2^63",
            "give smaller numbers",
        ),
        other => Error::bad_input("events", other.to_string(), ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(json: &str) -> String {
        solve(json.as_bytes(), Method::Even).expect_err(json).to_string()
    }

    #[test]
    fn the_example_of_the_format() {
        let json = br#"{"capacity_bytes": 1000, "events": [{"forward": "0.0", "floor_bytes": 10}, {"backward": "0.0"}],
            "held_bytes": {"0.0": 120}}"#;
        let answer = solve(json, Method::Even).expect("feasible");
        assert_eq!(
            serde_json::to_string(&answer).expect("JSON"),
            r#"{"forwards":[{"id":"0.0","free_bytes":1000,"quota_bytes":1000,"limit_bytes":1000,"held_bytes":120}],"peak_bytes":120}"#
        );
    }

    #[test]
    fn who_holds_too_much_starves_a_later_one() {
        let events = r#"[{"forward": "a", "floor_bytes": 10}, {"forward": "b", "floor_bytes": 30}, {"backward": "b"}, {"backward": "a"}]"#;
        let json = |held: u64| {
            format!(r#"{{"capacity_bytes": 100, "events": {events}, "held_bytes": {{"a": {held}}}}}"#)
        };
        assert!(solve(json(70).as_bytes(), Method::Even).is_ok());
        assert_eq!(
            refusal(&json(75)),
            "infeasible: the forward of \"b\" needs 105 bytes, 100 are available: 5 too few"
        );
        assert_eq!(
            refusal(&json(101)),
            "infeasible: with the forward of \"a\" the units in flight hold 101 bytes, 100 are available: 1 too few"
        );
        let floors = format!(r#"{{"capacity_bytes": 39, "events": {events}}}"#);
        assert_eq!(
            refusal(&floors),
            "infeasible: the floors alone hold 40 bytes, 39 are available: 1 too few"
        );
    }

    #[test]
    fn demand_weighs_the_proportional_shares() {
        let json =
            br#"{"capacity_bytes": 100, "events": [{"forward": "a", "floor_bytes": 0, "demand_bytes": 3},
            {"forward": "b", "floor_bytes": 0, "demand_bytes": 1}]}"#;
        let quota = |method| solve(json, method).expect("feasible").forwards[0].quota_bytes;
        assert_eq!((quota(Method::Even), quota(Method::Proportional)), (50, 75));
    }

    #[test]
    fn wrong_events_are_named() {
        let of = |events: &str| refusal(&format!(r#"{{"capacity_bytes": 9, "events": {events}}}"#));
        assert_eq!(
            of(r#"[{"backward": "a"}]"#),
            "events[0].backward: no forward \"a\" before it; list the forward first"
        );
        let pair = r#"{"forward": "a", "floor_bytes": 1}, {"backward": "a"}"#;
        assert!(
            of(&format!(r#"[{pair}, {{"backward": "a"}}]"#))
                .starts_with("events[2].backward: a second backward")
        );
        assert!(
            of(&format!(r#"[{pair}, {pair}]"#)).starts_with("events[2].forward: a second forward of \"a\"")
        );
        assert!(of(r#"[{"forward": "a"}]"#).starts_with("events[0]: forward \"a\" without floor_bytes"));
        assert!(of("[{}]").starts_with("events[0]: neither forward nor backward"));
        assert!(of(r#"[{"forward": "a", "backward": "a"}]"#).starts_with("events[0]: both"));
        assert!(
            of(&format!(r#"[{pair}, {{"backward": "a", "floor_bytes": 1}}]"#))
                .starts_with("events[2].floor_bytes")
        );
        let held = r#"{"capacity_bytes": 9, "events": [], "held_bytes": {"b": 1}}"#;
        assert_eq!(refusal(held), "held_bytes.b: no forward \"b\" in events; name a forward");
        let huge = format!(r#"{{"forward": "a", "floor_bytes": {}}}"#, u64::MAX);
        assert!(of(&format!("[{huge}]")).contains("2^63"));
    }
}
