//! A forward and a backward beside each other.

use bagualu_exec::rank::RankError;

use super::Program;
use super::runner::Runner;

impl Program<'_> {
    /// A forward and a backward, layer by layer: by turns a backward layer begins while a forward layer is under way, and
    /// the other way round.
    pub(super) fn fused(&mut self, forward: u32, backward: u32) -> Result<(), RankError> {
        self.rank.begin_forward(forward)?;
        self.rank.begin_backward(backward)?;
        let (mut ahead, mut back) = (0, self.layers(backward));
        while ahead < self.layers(forward) && back > 0 {
            if ahead % 2 == 0 {
                self.begin_layer(forward, ahead)?;
                let waits = self.waits_for_the_other(backward, back - 1)?;
                self.rank.layer_done(forward, ahead)?;
                self.outcome.behind_forward += u64::from(waits);
                if waits {
                    self.recover(backward, back - 1)?;
                }
                self.undo(backward, back - 1)?;
            } else {
                self.recover(backward, back - 1)?;
                self.beside = Some((backward, back - 1));
                self.begin_layer(forward, ahead)?;
                self.rank.layer_done(forward, ahead)?;
                self.end_beside()?;
            }
            (ahead, back) = (ahead + 1, back - 1);
        }
        for layer in ahead..self.layers(forward) {
            self.begin_layer(forward, layer)?;
            self.rank.layer_done(forward, layer)?;
        }
        for layer in (0..back).rev() {
            self.recover(backward, layer)?;
            self.undo(backward, layer)?;
        }
        self.rank.end_forward(None)?;
        self.rank.end_backward()
    }

    /// Ends the backward layer under way, if there is one.
    fn end_beside(&mut self) -> Result<bool, RankError> {
        let Some((unit, layer)) = self.beside.take() else { return Ok(false) };
        self.undo(unit, layer)?;
        Ok(true)
    }

    /// Takes a step of the forward; where it must wait for the backward layer beside it, ends that first.
    pub(super) fn step<T>(
        &mut self,
        mut step: impl FnMut(&mut Runner<'_>) -> Result<T, RankError>,
    ) -> Result<T, RankError> {
        match step(&mut self.rank) {
            Err(RankError::Waits { .. }) if self.end_beside()? => {
                self.outcome.behind_backward += 1;
                step(&mut self.rank)
            }
            done => done,
        }
    }

    /// Recovers a layer, or says that it must wait for the forward under way.
    fn waits_for_the_other(&mut self, unit: u32, layer: usize) -> Result<bool, RankError> {
        match self.recover(unit, layer) {
            Ok(()) => Ok(false),
            Err(RankError::Waits { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
