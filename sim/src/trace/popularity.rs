//! JSON `{"expert_popularity": [[counts of layer 0], …]}`, as efeslab/fiddler publishes it.

use serde::Deserialize;

use super::{Trace, TraceError};
use crate::load::MAX_EXPERTS;

#[derive(Deserialize)]
struct Popularity {
    expert_popularity: Vec<Vec<u32>>,
}

/// One micro-batch, which every micro-batch of a replay then is.
pub(super) fn parse(text: &[u8]) -> Result<Trace, TraceError> {
    let popularity: Popularity =
        serde_json::from_slice(text).map_err(|e| TraceError::Syntax { message: e.to_string() })?;
    let layers = popularity.expert_popularity;
    let experts = layers.first().ok_or(TraceError::Empty)?.len();
    if experts > MAX_EXPERTS as usize {
        return Err(TraceError::TooManyExperts { count: experts });
    }
    for (layer, counts) in layers.iter().enumerate() {
        let place = format!("expert_popularity[{layer}]");
        if counts.len() != experts {
            let key = format!("{place}[{}]", counts.len().min(experts));
            return Err(TraceError::Missing { key, needed: "all layers need the same experts".to_owned() });
        }
        if counts.iter().all(|&c| c == 0) {
            return Err(TraceError::NoRows { place });
        }
    }
    Ok(Trace {
        experts,
        layers: layers.len(),
        starts: vec![0],
        continuous: true,
        counts: layers.into_iter().flatten().collect(),
    })
}
