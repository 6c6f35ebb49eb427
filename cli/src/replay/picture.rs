//! Device memory over one iteration, as a self-contained SVG.
//!
//! All curves are of one device and one iteration: where a static policy ran out of memory most, or else
//! where the controller came closest to the capacity.

use bagualu_sim::controlled::{Setup, curve_controlled, outcomes};
use bagualu_sim::policy::Static;
use bagualu_sim::replay::{Curve, DeviceId, curve_static, tightest};
use plotters::prelude::*;

use super::{Answer, refused};
use crate::Error;

const SIZE: (u32, u32) = (1_100, 620);
/// The legend is a strip below the plot, where it hides no curve: its height, its left end and the width of an
/// entry, in pixels.
const LEGEND_HEIGHT: u32 = 30;
const LEGEND_LEFT: i32 = 78;
const LEGEND_STEP: i32 = 190;
const OURS: RGBColor = RGBColor(0, 114, 178);
const LIMIT: RGBColor = RGBColor(40, 40, 40);
const ALARM: RGBColor = RGBColor(204, 51, 17);

const fn color(policy: Static) -> RGBColor {
    match policy {
        Static::None => RGBColor(213, 94, 0),
        Static::Selective => RGBColor(230, 159, 0),
        Static::Full => RGBColor(0, 158, 115),
    }
}

/// One line of the picture.
struct Line {
    name: String,
    color: RGBColor,
    curve: Curve,
    width: u32,
}

/// The picture of an answer.
pub fn draw(answer: &Answer<'_>) -> Result<String, Error> {
    let (device, iteration) = shown(answer);
    let job = answer.job;
    let mut lines: Vec<_> = answer
        .statics
        .iter()
        .map(|&(policy, _)| Line {
            name: format!("static {}", policy.name()),
            color: color(policy),
            curve: curve_static(job, answer.source.load(), policy, device, iteration),
            width: 1,
        })
        .collect();
    lines.push(Line {
        name: "bagualu".to_owned(),
        color: OURS,
        curve: curve_controlled(job, answer.source.load(), &Setup::default(), device, iteration)
            .map_err(|error| refused(error, answer.model))?,
        width: 2,
    });
    let title = format!(
        "Device memory for activations: pipeline rank {}, expert-parallel rank {}, iteration {iteration}",
        device.stage, device.ep_rank
    );
    let mut svg = String::new();
    plot(&mut svg, &title, &lines, job.device_bytes(device.stage))
        .map_err(|error| Error::bad_input("--svg", error, "leave it out"))?;
    Ok(svg)
}

/// Which device and iteration are shown.
fn shown(answer: &Answer<'_>) -> (DeviceId, u32) {
    let mut failed = answer.statics.iter().filter_map(|(_, outcomes)| {
        tightest(answer.job, outcomes).filter(|o| o.verdict.first_excess.is_some())
    });
    let ours = outcomes(&answer.controlled);
    // The last policy named is the most careful one; if even that failed, its failure is the best picture.
    let shown = failed.next_back().or_else(|| tightest(answer.job, &ours));
    shown.map_or((DeviceId { stage: 0, ep_rank: 0 }, 0), |o| (o.device, o.verdict.peak.iteration))
}

fn plot(svg: &mut String, title: &str, lines: &[Line], capacity: u64) -> Result<(), String> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE).map_err(|e| e.to_string())?;
    let points = || lines.iter().flat_map(|line| &line.curve);
    let end = points().map(|&(ns, _)| ms(ns)).fold(1e-3, f64::max);
    let most = points().map(|&(_, bytes)| gib(bytes)).fold(gib(capacity), f64::max);
    let (plot, below) = root.split_vertically(SIZE.1 - LEGEND_HEIGHT);
    let mut chart = ChartBuilder::on(&plot)
        .caption(title, ("sans-serif", 18))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end, 0.0..most * 1.08)
        .map_err(|e| e.to_string())?;
    chart
        .configure_mesh()
        .x_desc("time on the device's own clock, ms")
        .y_desc("GiB")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .label_style(("sans-serif", 13))
        .axis_desc_style(("sans-serif", 14))
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .draw()
        .map_err(|e| e.to_string())?;
    for line in lines {
        let style = line.color.stroke_width(line.width);
        chart.draw_series(LineSeries::new(steps(&line.curve, end), style)).map_err(|e| e.to_string())?;
        let first = line.curve.iter().find(|&&(_, bytes)| bytes > capacity);
        let cross = first.map(|&(ns, bytes)| Cross::new((ms(ns), gib(bytes)), 6, ALARM.stroke_width(3)));
        chart.draw_series(cross).map_err(|e| e.to_string())?;
    }
    let limit = LIMIT.stroke_width(2);
    chart
        .draw_series(DashedLineSeries::new([(0.0, gib(capacity)), (end, gib(capacity))], 8, 5, limit))
        .map_err(|e| e.to_string())?;
    drop(chart);
    let names = lines.iter().map(|line| (line.name.as_str(), line.color.stroke_width(line.width)));
    let limit = ("available; × first out of memory", limit);
    for (place, (name, style)) in (0..).zip(names.chain([limit])) {
        let (x, y) = (LEGEND_LEFT + place * LEGEND_STEP, 10);
        let text = Text::new(name.to_owned(), (x + 28, y - 6), ("sans-serif", 13));
        below.draw(&PathElement::new([(x, y), (x + 22, y)], style)).map_err(|e| e.to_string())?;
        below.draw(&text).map_err(|e| e.to_string())?;
    }
    root.present().map_err(|e| e.to_string())
}

/// A curve as few enough points: in each of some thousand steps of time, its least and its most.
fn steps(curve: &Curve, end: f64) -> Vec<(f64, f64)> {
    const STEPS: f64 = 1_000.0;
    let mut points: Vec<(f64, f64)> = Vec::new();
    let column = |ns: u64| (ms(ns) / end * STEPS) as u64;
    for group in curve.chunk_by(|a, b| column(a.0) == column(b.0)) {
        let extreme = [group.iter().min_by_key(|p| p.1), group.iter().max_by_key(|p| p.1)];
        let mut ends: Vec<_> =
            [group.first(), extreme[0], extreme[1], group.last()].into_iter().flatten().collect();
        ends.sort_by_key(|p| p.0);
        for &&(ns, bytes) in &ends {
            // Between two changes the bytes stay what they were.
            if let Some(&(_, before)) = points.last() {
                points.push((ms(ns), before));
            }
            points.push((ms(ns), gib(bytes)));
        }
    }
    points.dedup();
    points
}

// Floating point for the picture alone.

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1u32 << 30)
}
