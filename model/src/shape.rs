//! Sizes of one rank, from which every formula of the layer tables is written.

use crate::{Attention, Device, Loss, ModelConfig, ModelError, Norm, Parallelism};
use crate::{Fp8Recipe, PermuteIndices, Precision, Rotary, RouterInput, RowPadding};

/// Sizes of one rank. `u128` so that products cannot overflow.
pub(crate) struct Shape {
    /// Bytes of an element of the parameters' type.
    pub e: u128,
    /// T: tokens that the rank owns outside attention and MLP (all of S without sequence parallel).
    pub t: u128,
    /// S: tokens of a micro-batch that attention and MLP of the rank run on, s·b/cp.
    pub s: u128,
    /// Tokens of a sequence.
    pub seq: u128,
    /// h.
    pub h: u128,
    /// Columns of the queries on this rank.
    pub q: u128,
    /// Columns of the keys on this rank.
    pub k: u128,
    /// Columns of the values on this rank.
    pub v: u128,
    /// Columns of the fused projection to queries, keys and values that this rank makes.
    pub qkv_part: u128,
    /// Columns of the storage that its queries, keys and values are views of: its own part, or gathered over
    /// ranks that share a group.
    pub qkv: u128,
    /// Columns of attention's output on this rank.
    pub context: u128,
    /// Heads on this rank.
    pub heads: u128,
    /// Key/value groups on this rank.
    pub groups: u128,
    /// Elements of a head with rotary position.
    pub rotary_dim: u128,
    /// The latents of multi-latent attention.
    pub mla: Option<MlaShape>,
    /// Hidden columns of a dense MLP on this rank.
    pub ffn: u128,
    /// Rows of the padded vocabulary on this rank.
    pub vocab: u128,
    /// Columns of fc1's output for each hidden column.
    pub glu: u128,
    /// FP32 statistics that a norm saves for each row.
    pub norm_stats: u128,
    /// Whether tensor-parallel collectives run.
    pub tp: bool,
    /// Context-parallel ranks.
    pub cp: u128,
    /// Tensor-parallel ranks.
    pub tp_ranks: u128,
    /// What the layers choose between.
    pub kind: Kind,
    /// The experts.
    pub moe: Option<MoeShape>,
}

/// Columns of the latents of multi-latent attention: whole on every tensor-parallel rank.
pub(crate) struct MlaShape {
    /// Latent of the queries, 0 where they are projected directly.
    pub q_latent: u128,
    /// Latent of keys and values.
    pub kv_latent: u128,
    /// The key's rotary part, shared by all heads.
    pub rope: u128,
    /// Keys without rotary part, on this rank.
    pub k_up: u128,
}

/// Sizes of the experts on one rank.
pub(crate) struct MoeShape {
    /// Rows that the rank's tokens are routed to: T·k.
    pub routed: u128,
    /// The limit of an expert's rows, if it has one.
    pub capacity: Option<CapacityShape>,
    /// How rows are padded for GEMMs in FP8.
    pub padding: RowPadding,
    /// E.
    pub experts: u128,
    /// Experts on this rank.
    pub local: u128,
    /// Hidden columns of an expert on this rank.
    pub f: u128,
    /// Hidden columns of the shared expert on this rank.
    pub shared: u128,
    /// Whether a gate weights the shared expert's output.
    pub shared_gate: bool,
    /// Columns of the rows that experts run on: h, or of the latent.
    pub width: u128,
    /// Expert-parallel ranks.
    pub ep: u128,
    /// Expert-tensor-parallel ranks.
    pub etp: u128,
    /// What permutation keeps.
    pub permute_indices: PermuteIndices,
    /// What the router keeps.
    pub router_input: RouterInput,
}

/// The rows that one rank may send to one expert (Megatron's `get_capacity`: each rank's router drops on its own).
pub(crate) struct CapacityShape {
    /// ⌈T·k ÷ E · factor⌉, at most T.
    pub rows: u128,
    /// Whether so many are sent whatever the routing.
    pub pad: bool,
}

/// What the layers choose between.
pub(crate) struct Kind {
    pub precision: Precision,
    pub attention: Attention,
    pub qk_norm: bool,
    pub rotary: Rotary,
    pub fused_activation: bool,
    /// How linear layers' inputs are saved in FP8.
    pub fp8: Option<Fp8Recipe>,
    /// Whether the activation's input is.
    pub fp8_store: bool,
    pub hidden_dropout: bool,
    pub attention_dropout: bool,
    pub loss: Loss,
}

impl Shape {
    /// Sizes of a rank; `config` and `parallelism` have been checked against each other.
    pub fn new(config: &ModelConfig, parallelism: &Parallelism) -> Self {
        let tp = u128::from(parallelism.tp);
        let cp = u128::from(parallelism.cp);
        let s = u128::from(config.seq) / cp * u128::from(parallelism.micro_batch);
        let heads = u128::from(config.heads) / tp;
        let head = Head::new(config);
        // Multi-latent attention makes keys and values of every head.
        let groups = if config.mla.is_some() { heads } else { u128::from(config.kv_groups).div_ceil(tp) };
        let t = if parallelism.sequence_parallel { s / tp } else { s };
        let qkv = u128::from(config.head_dim) * u128::from(config.heads + 2 * config.kv_groups);
        let moe = config.moe.as_ref().map(|moe| MoeShape {
            routed: t * u128::from(moe.top_k),
            capacity: moe.capacity.map(|capacity| {
                let scaled = t * u128::from(moe.top_k) * u128::from(capacity.factor_permille);
                let rows = scaled.div_ceil(u128::from(moe.experts) * 1_000).min(t);
                CapacityShape { rows, pad: capacity.pad }
            }),
            padding: parallelism.row_padding,
            experts: moe.experts.into(),
            local: u128::from(moe.experts / parallelism.ep),
            f: u128::from(moe.ffn / parallelism.etp),
            shared: u128::from(moe.shared_ffn) / tp,
            shared_gate: moe.shared_gate,
            width: if moe.latent > 0 { moe.latent } else { config.hidden }.into(),
            ep: parallelism.ep.into(),
            etp: parallelism.etp.into(),
            permute_indices: moe.permute_indices,
            router_input: moe.router_input,
        });
        Self {
            e: parallelism.precision.bytes().into(),
            t,
            s,
            seq: config.seq.into(),
            h: config.hidden.into(),
            q: heads * head.qk,
            k: groups * head.qk,
            v: groups * head.v,
            qkv_part: qkv / tp,
            qkv: if tp > u128::from(config.kv_groups) { qkv } else { qkv / tp },
            context: heads * head.v,
            heads,
            groups,
            rotary_dim: head.rotary,
            mla: config.mla.map(|mla| MlaShape {
                q_latent: mla.q_lora_rank.into(),
                kv_latent: mla.kv_lora_rank.into(),
                rope: mla.qk_rope_dim.into(),
                k_up: heads * u128::from(mla.qk_head_dim),
            }),
            ffn: u128::from(config.ffn) / tp,
            vocab: padded_vocab(config, tp) / tp,
            glu: config.activation.width(),
            norm_stats: match config.norm {
                Norm::RmsNorm => 1,
                Norm::LayerNorm => 2,
            },
            tp: parallelism.tp > 1,
            cp,
            tp_ranks: tp,
            kind: Kind {
                precision: parallelism.precision,
                attention: config.attention,
                qk_norm: config.qk_norm,
                rotary: config.rotary,
                fused_activation: config.fused_activation,
                fp8: parallelism.fp8.map(|fp8| fp8.recipe),
                fp8_store: parallelism.fp8_activation_store,
                hidden_dropout: config.hidden_dropout,
                attention_dropout: config.attention_dropout,
                loss: config.loss,
            },
            moe,
        }
    }

    /// Bytes of a hidden state that the rank owns.
    pub fn hidden(&self) -> u128 {
        self.e * self.t * self.h
    }

    /// Bytes of the scores of unfused attention on this rank.
    pub fn scores(&self) -> u128 {
        self.e * self.heads * self.s * self.seq
    }

    /// Bytes of a hidden state of all tokens of the micro-batch, as gathered for a linear layer.
    pub fn gathered(&self) -> u128 {
        self.e * self.s * self.h
    }

    /// Bytes of the fused projection that ranks which share a group gather; none where no rank does.
    pub fn qkv_gathered(&self) -> u128 {
        if self.qkv == self.qkv_part { 0 } else { self.e * self.s * self.qkv }
    }

    /// Bytes beyond [`Self::hidden`] that gathering takes; none without tensor parallel.
    pub fn gather_work(&self) -> u128 {
        if self.tp { self.gathered() } else { 0 }
    }
}

/// Elements of one head.
struct Head {
    /// Of a query and of a key.
    qk: u128,
    /// Of a value.
    v: u128,
    /// With rotary position.
    rotary: u128,
}

impl Head {
    fn new(config: &ModelConfig) -> Self {
        match &config.mla {
            None => {
                let dim = config.head_dim.into();
                Self { qk: dim, v: dim, rotary: dim }
            }
            Some(mla) => Self {
                qk: (mla.qk_head_dim + mla.qk_rope_dim).into(),
                v: mla.v_head_dim.into(),
                rotary: mla.qk_rope_dim.into(),
            },
        }
    }
}

impl MoeShape {
    /// Rows of a rank when every expert of the group receives equally many, T·k·ETP or its capacity, and the
    /// most there are.
    pub fn rows(&self) -> Result<(u32, u32), ModelError> {
        let most = self.local * self.most_of_expert();
        let balanced = match &self.capacity {
            Some(capacity) if capacity.pad => most,
            _ => most.min(self.routed * self.etp),
        };
        let rows = |n: u128| {
            u32::try_from(n).map_err(|_| ModelError::Overflow { what: "T·k·ep·etp (routed rows, u32)" })
        };
        let most = most.min(self.all()) + self.padding_rows();
        // What is dropped is counted too, where loads are spread over the group.
        rows(self.routed * self.etp * self.ep)?;
        Ok((rows(balanced)?, rows(most)?))
    }

    /// The most rows that padding adds to what this rank's experts receive: the real routing decides, so all
    /// that there can be are counted. A capacity that is padded to is one number for routers already.
    pub fn padding_rows(&self) -> u128 {
        let senders = match self.padding.by_router {
            true if self.pads() => 0,
            true => self.ep * self.etp,
            false => 1,
        };
        self.added_to_each() * self.local * senders
    }

    fn added_to_each(&self) -> u128 {
        u128::from(self.padding.multiple.saturating_sub(1))
    }

    /// The most rows that an expert receives from the ranks of its group.
    pub fn most_of_expert(&self) -> u128 {
        match &self.capacity {
            Some(capacity) => capacity.rows * self.ep * self.etp,
            None => self.routed * self.ep * self.etp,
        }
    }

    /// Rows of the group, all of which one rank may receive; padding makes more of them.
    fn all(&self) -> u128 {
        let padded = self.capacity.as_ref().filter(|capacity| capacity.pad);
        let sent = padded.map_or(self.routed, |capacity| capacity.rows * self.experts);
        sent * self.ep * self.etp
    }

    /// Whether experts are padded to their capacity.
    pub fn pads(&self) -> bool {
        self.capacity.as_ref().is_some_and(|capacity| capacity.pad)
    }

    /// Rows that a rank sends to experts: its tokens' copies, without those dropped, with those padded.
    pub fn sent(&self) -> u128 {
        let sent = match &self.capacity {
            Some(capacity) if capacity.pad => return capacity.rows * self.experts,
            Some(capacity) => self.routed.min(capacity.rows * self.experts),
            None => self.routed,
        };
        if self.padding.by_router { sent + self.added_to_each() * self.experts } else { sent }
    }
}

/// The vocabulary as Megatron pads it.
pub(crate) fn padded_vocab(config: &ModelConfig, tp: u128) -> u128 {
    u128::from(config.vocab).next_multiple_of(u128::from(config.vocab_multiple) * tp)
}

/// Rates at which the operators of a rank run.
pub(crate) struct Rates {
    /// Peak FLOP/s in the run's precision.
    pub flops: u64,
    /// Peak FLOP/s of linear layers in FP8.
    pub fp8_flops: u64,
    /// Device memory, bytes/s.
    pub memory: u64,
    /// Links of the tensor-parallel group, bytes/s.
    pub tp: u64,
    /// Links of the context-parallel ring, bytes/s.
    pub cp: u64,
    /// Links of the group of expert and expert-tensor parallel, bytes/s.
    pub ep: u64,
}

impl Rates {
    /// Rates of a rank: a group inside a node uses the node's links, a larger one those between nodes for
    /// the share of its traffic that leaves the node.
    pub fn new(device: &Device, parallelism: &Parallelism) -> Self {
        Self {
            flops: match parallelism.precision {
                Precision::Bf16 => device.bf16_flops,
                Precision::Fp32 => device.fp32_flops,
            },
            fp8_flops: match device.fp8_flops {
                0 => device.bf16_flops,
                rate => rate,
            },
            memory: device.memory_bytes_per_s,
            tp: link(device, parallelism.tp),
            cp: ring(device, parallelism.tp * parallelism.cp),
            ep: link(device, parallelism.ep * parallelism.etp),
        }
    }
}

/// Bandwidth of a ring over `ranks` consecutive ranks: its slowest hop's.
fn ring(device: &Device, ranks: u64) -> u64 {
    if ranks <= device.devices_per_node { device.intra_bytes_per_s } else { device.inter_bytes_per_s }
}

/// Bandwidth of an exchange among `ranks` consecutive ranks.
fn link(device: &Device, ranks: u64) -> u64 {
    if ranks <= device.devices_per_node {
        return device.intra_bytes_per_s;
    }
    let remote = ranks - device.devices_per_node;
    let rate = u128::from(device.inter_bytes_per_s) * u128::from(ranks) / u128::from(remote);
    u64::try_from(rate).unwrap_or(u64::MAX).min(device.intra_bytes_per_s)
}
