//! The CSV formats: rows per micro-batch and layer, or one count per line.

use std::collections::{BTreeMap, BTreeSet};

use csv::{ReaderBuilder, StringRecord};

use super::{Trace, TraceError};
use crate::load::MAX_EXPERTS;
use crate::text::value;

/// `[iteration,]microbatch,layer,e0,e1,…` or `model,domain,slot,expert,count`.
pub(super) fn parse(text: &[u8], model: Option<&str>) -> Result<Trace, TraceError> {
    let mut records = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text).into_records();
    let header = records.next().ok_or(TraceError::Empty)?.map_err(syntax)?;
    let lines = records.map(|record| {
        let record = record.map_err(syntax)?;
        let line = record.position().map_or(0, |p| p.line());
        if record.len() != header.len() {
            return Err(TraceError::Width { line, found: record.len(), expected: header.len() });
        }
        Ok((line, record))
    });
    if header.get(0) == Some("model") { counts(&header, lines, model) } else { rows(&header, lines) }
}

fn syntax(error: csv::Error) -> TraceError {
    TraceError::Syntax { message: error.to_string() }
}

/// What identifies a line: iteration, micro-batch, layer.
type Key = (u32, u32, u32);

fn rows(
    header: &StringRecord,
    lines: impl Iterator<Item = Result<(u64, StringRecord), TraceError>>,
) -> Result<Trace, TraceError> {
    let keys: &[_] = match header.get(0) {
        Some("iteration") => &["iteration", "microbatch", "layer"],
        _ => &["microbatch", "layer"],
    };
    let experts = header.len().saturating_sub(keys.len());
    let expected = keys.iter().map(|&k| k.to_owned()).chain((0..experts.max(1)).map(|e| format!("e{e}")));
    for (column, name) in expected.enumerate() {
        let found = header.get(column).unwrap_or("");
        if found != name {
            let expected = match column {
                0 => "\"iteration\", \"microbatch\" or \"model\"".to_owned(),
                _ => format!("\"{name}\""),
            };
            return Err(TraceError::Header { column: column + 1, found: found.to_owned(), expected });
        }
    }
    check_experts(experts)?;

    let mut table: BTreeMap<Key, Vec<u32>> = BTreeMap::new();
    for item in lines {
        let (line, record) = item?;
        let numbers = (0..record.len())
            .map(|column| number(line, header.get(column).unwrap_or(""), record.get(column).unwrap_or("")))
            .collect::<Result<Vec<_>, _>>()?;
        let (place, counts) = numbers.split_at(keys.len());
        let key = match *place {
            [iteration, micro_batch, layer] => (iteration, micro_batch, layer),
            [micro_batch, layer] => (0, micro_batch, layer),
            _ => return Err(TraceError::Width { line, found: record.len(), expected: header.len() }),
        };
        if counts.iter().all(|&c| c == 0) {
            return Err(TraceError::NoRows { place: format!("line {line}") });
        }
        if table.insert(key, counts.to_vec()).is_some() {
            return Err(TraceError::Repeated { line, key: name(key) });
        }
    }
    assemble(table, experts, keys.len() == 2)
}

fn counts(
    header: &StringRecord,
    lines: impl Iterator<Item = Result<(u64, StringRecord), TraceError>>,
    model: Option<&str>,
) -> Result<Trace, TraceError> {
    for (column, name) in ["model", "domain", "slot", "expert", "count"].into_iter().enumerate() {
        let found = header.get(column).unwrap_or("");
        if found != name {
            let expected = format!("\"{name}\"");
            return Err(TraceError::Header { column: column + 1, found: found.to_owned(), expected });
        }
    }
    // Domains become micro-batches, in the order in which they first appear.
    let mut domains: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut table: BTreeMap<String, BTreeMap<Key, BTreeMap<u32, u32>>> = BTreeMap::new();
    for item in lines {
        let (line, record) = item?;
        let field = |column: usize| record.get(column).unwrap_or("");
        let slot = number(line, "slot", field(2))?;
        let expert = number(line, "expert", field(3))?;
        let count = number(line, "count", field(4))?;
        let seen = domains.entry(field(0).to_owned()).or_default();
        let domain = seen.iter().position(|d| d == field(1)).unwrap_or_else(|| {
            seen.push(field(1).to_owned());
            seen.len() - 1
        });
        let key = (0, u32::try_from(domain).unwrap_or(u32::MAX), slot);
        let experts = table.entry(field(0).to_owned()).or_default().entry(key).or_default();
        if experts.insert(expert, count).is_some() {
            let key = format!(
                "model {}, domain {}, slot {slot}, expert {expert}",
                value(field(0)),
                value(field(1))
            );
            return Err(TraceError::Repeated { line, key });
        }
    }
    let table = choose(table, model)?;
    let experts = table.values().map(BTreeMap::len).max().ok_or(TraceError::Empty)?;
    check_experts(experts)?;
    let mut rows = BTreeMap::new();
    for (key, counts) in table {
        let gap = (0..).zip(counts.keys()).find(|(expected, found)| expected != *found).map(|pair| pair.0);
        if let Some(expert) = gap.or((counts.len() < experts).then_some(counts.len() as u32)) {
            let key = format!("{}, expert {expert}", name(key));
            let needed = format!("experts 0 to {} are needed", experts - 1);
            return Err(TraceError::Missing { key, needed });
        }
        if counts.values().all(|&c| c == 0) {
            return Err(TraceError::NoRows { place: name(key) });
        }
        rows.insert(key, counts.into_values().collect());
    }
    assemble(rows, experts, true)
}

fn choose<T>(mut table: BTreeMap<String, T>, model: Option<&str>) -> Result<T, TraceError> {
    let models = || table.keys().cloned().collect();
    let chosen = match model {
        Some(model) if table.contains_key(model) => model.to_owned(),
        Some(model) => return Err(TraceError::Model { asked: Some(model.to_owned()), models: models() }),
        None if table.len() > 1 => return Err(TraceError::Model { asked: None, models: models() }),
        None => table.keys().next().cloned().ok_or(TraceError::Empty)?,
    };
    table.remove(&chosen).ok_or(TraceError::Empty)
}

/// Checks that iterations and micro-batches count from 0 and that each has the same layers.
fn assemble(table: BTreeMap<Key, Vec<u32>>, experts: usize, continuous: bool) -> Result<Trace, TraceError> {
    let layers: BTreeSet<u32> = table.keys().map(|key| key.2).collect();
    let Some(&first_layer) = layers.first() else { return Err(TraceError::Empty) };
    let mut expected = (0, 0, first_layer);
    let mut starts = vec![0];
    let mut counts = Vec::with_capacity(table.len() * experts);
    for (place, (key, row)) in table.into_iter().enumerate() {
        let next_iteration = (expected.0 + 1, 0, first_layer);
        if key == next_iteration && expected.2 == first_layer && expected.1 > 0 {
            starts.push(place / layers.len());
            expected = next_iteration;
        }
        if key != expected {
            return Err(missing(expected, &layers));
        }
        expected = match layers.range(key.2 + 1..).next() {
            Some(&layer) => (key.0, key.1, layer),
            None => (key.0, key.1 + 1, first_layer),
        };
        counts.extend(row);
    }
    if expected.2 != first_layer {
        return Err(missing(expected, &layers));
    }
    Ok(Trace { experts, layers: layers.len(), starts, continuous, counts })
}

fn missing(key: Key, layers: &BTreeSet<u32>) -> TraceError {
    let layers: Vec<_> = layers.iter().map(u32::to_string).collect();
    let needed = format!(
        "iterations and micro-batches count from 0 and each micro-batch needs the layers {}",
        layers.join(", ")
    );
    TraceError::Missing { key: name(key), needed }
}

fn name((iteration, micro_batch, layer): Key) -> String {
    format!("iteration {iteration}, micro-batch {micro_batch}, layer {layer}")
}

fn number(line: u64, field: &str, value: &str) -> Result<u32, TraceError> {
    let digits = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit());
    value.parse().ok().filter(|_| digits).ok_or_else(|| TraceError::Number {
        place: format!("line {line}"),
        field: format!("column {field}"),
        value: value.to_owned(),
    })
}

fn check_experts(count: usize) -> Result<(), TraceError> {
    if count > MAX_EXPERTS as usize { Err(TraceError::TooManyExperts { count }) } else { Ok(()) }
}
