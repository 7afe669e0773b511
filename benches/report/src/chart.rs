//! Bars and lines as SVG.

use std::error::Error;
use std::ops::Range;

use anyhow::{Result, anyhow, ensure};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Coordinate, Coordinate>>;
type Drawn<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Sizes in pixels, which SVG scales to whatever it is shown in.
const MARGIN: i32 = 16;
const TITLE: i32 = 22;
const TEXT: i32 = 15;
const SMALL: i32 = 13;
/// Between the lines of a text, and from a legend's beginning to its text.
const LEADING: i32 = 20;
const SWATCH: i32 = 28;
const LEFT: i32 = 70;
/// Below bars whose names lie.
const FLAT: i32 = LEADING + 8;

/// The colours, which are told apart by eyes that do not see red or green too (Okabe and Ito).
const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(110, 110, 110),
];

/// Panels below a title.
#[derive(Clone, Debug)]
pub struct Picture {
    /// What is shown.
    pub title: String,
    /// Where and when it was measured.
    pub note: String,
    /// Width, and height of each row of panels, in pixels.
    pub size: (u32, u32),
    /// Rows of panels of equal width.
    pub rows: Vec<Vec<Panel>>,
}

/// Bars or lines with a vertical axis.
#[derive(Clone, Debug)]
pub struct Panel {
    /// What is shown; may be empty.
    pub title: String,
    /// The vertical axis.
    pub y: Axis,
    /// What is drawn.
    pub content: Content,
    /// Values to compare with.
    pub marks: Vec<Mark>,
}

/// What an axis is about.
#[derive(Clone, Debug)]
pub struct Axis {
    /// With the unit.
    pub label: String,
    /// How values become distances.
    pub scale: Scale,
}

/// How values become distances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// A vertical axis has 0; bars start there.
    Linear,
    /// A vertical axis of bars has 1; they start there. Values of 0 and below are left out.
    Logarithmic,
}

/// What a panel shows.
#[derive(Clone, Debug)]
pub enum Content {
    /// Groups of bars, with a bar of each series.
    Bars {
        /// The name of each group.
        groups: Vec<String>,
        /// The series.
        series: Vec<Bars>,
    },
    /// Lines over a horizontal axis.
    Lines {
        /// The horizontal axis.
        x: Axis,
        /// The lines; later ones are on top.
        lines: Vec<PlottedLine>,
    },
}

/// Bars of one colour.
#[derive(Clone, Debug)]
pub struct Bars {
    /// In the legend.
    pub name: String,
    /// A bar for each group that has one. Where no group has one, the series is left out.
    pub values: Vec<Option<f64>>,
}

impl Bars {
    /// A bar for each of these.
    pub fn of<T>(name: &str, rows: &[T], value: impl Fn(&T) -> f64) -> Bars {
        Bars { name: name.to_owned(), values: rows.iter().map(|row| Some(value(row))).collect() }
    }
}

/// A line.
#[derive(Clone, Debug)]
pub struct PlottedLine {
    /// In the legend, which lines without a name are not in.
    pub name: String,
    /// Lines of the same number are of the same colour.
    pub colour: usize,
    /// How it is drawn.
    pub style: LineStyle,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

/// How a line is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LineStyle {
    /// Drawn through.
    Solid,
    /// In dashes.
    Dashed,
    /// Its points alone.
    Points,
}

/// A value to compare with: a dashed horizontal line.
#[derive(Clone, Debug)]
pub struct Mark {
    /// What it is.
    pub label: String,
    /// Where it is.
    pub value: f64,
    /// The group of bars that it belongs to; `None` for all.
    pub group: Option<usize>,
}

impl Axis {
    /// Equal distances for equal differences.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), scale: Scale::Linear }
    }

    /// Equal distances for equal ratios.
    pub fn logarithmic(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), scale: Scale::Logarithmic }
    }
}

impl Picture {
    /// The picture as SVG.
    ///
    /// # Errors
    ///
    /// If a panel has nothing to show, or cannot be drawn.
    pub fn svg(&self) -> Result<String> {
        for panel in self.rows.iter().flatten() {
            ensure!(panel.values().next().is_some(), "there is nothing to draw: {}", panel.y.label);
        }
        let mut text = String::new();
        self.draw(&mut text).map_err(|error| anyhow!("cannot draw the picture: {error}"))?;
        Ok(text)
    }

    fn draw(&self, text: &mut String) -> Drawn {
        let (width, height) = self.size;
        let head = 2 * MARGIN + TITLE + if self.note.is_empty() { 0 } else { LEADING };
        let size = (width, head as u32 + height * self.rows.len() as u32);
        let root = SVGBackend::with_string(text, size).into_drawing_area();
        root.fill(&WHITE)?;
        let middle = width as i32 / 2;
        let centred = Pos::new(HPos::Center, VPos::Top);
        root.draw_text(&self.title, &font(TITLE).pos(centred), (middle, MARGIN))?;
        let below = (middle, MARGIN + TITLE + 4);
        root.draw_text(&self.note, &font(SMALL).pos(centred), below)?;
        let (_, rest) = root.split_vertically(head);
        for (row, area) in self.rows.iter().zip(rest.split_evenly((self.rows.len(), 1))) {
            for (panel, area) in row.iter().zip(area.split_evenly((1, row.len()))) {
                panel.draw(&root, &area)?;
            }
        }
        root.present()?;
        Ok(())
    }
}

impl Panel {
    /// All values that there is room for on the vertical axis.
    fn values(&self) -> impl Iterator<Item = f64> {
        let values: Vec<f64> = match &self.content {
            Content::Bars { series, .. } => {
                series.iter().flat_map(|bars| bars.values.iter().copied().flatten()).collect()
            }
            Content::Lines { lines, .. } => {
                lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y).collect()
            }
        };
        values.into_iter().filter(|value| self.y.scale.can_show(*value))
    }

    fn draw(&self, root: &Area, area: &Area) -> Drawn {
        let head = draw_head(area, &self.title, &self.legend())?;
        let (_, area) = area.split_vertically(head);
        let whole = self.marks.iter().filter(|mark| mark.group.is_none());
        // Beside the panel, where there are no bars.
        let right = whole.map(|mark| text_width(&mark.label, SMALL) + 8).max().unwrap_or_default();
        let width = area.dim_in_pixel().0 as i32 - LEFT - 2 * MARGIN - right;
        let (x, below, label) = match &self.content {
            Content::Bars { groups, .. } => {
                let longest = groups.iter().map(|group| text_width(group, SMALL)).max();
                let longest = longest.unwrap_or_default();
                let is_flat = (longest + 8) * groups.len() as i32 <= width;
                let below = if is_flat { FLAT } else { longest + 16 };
                (Coordinate::groups(groups.len()), below, "")
            }
            Content::Lines { x, lines } => {
                let values = lines.iter().flat_map(|line| &line.points).map(|(x, _)| *x);
                let values = values.filter(|value| x.scale.can_show(*value));
                (x.scale.around(values), 50, x.label.as_str())
            }
        };
        let mut chart = ChartBuilder::on(&area)
            .margin(MARGIN)
            .margin_top(if self.marks.iter().any(|mark| mark.group.is_some()) {
                LEADING
            } else {
                4
            })
            .margin_right(MARGIN + right)
            .x_label_area_size(below)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(x, self.vertical())?;
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT)
            .x_desc(label)
            .y_desc(&self.y.label)
            .label_style(font(TEXT));
        if matches!(self.content, Content::Bars { .. }) {
            mesh.disable_x_mesh();
        }
        mesh.draw()?;
        match &self.content {
            Content::Bars { groups, series } => {
                self.draw_bars(&mut chart, series)?;
                let bottom = chart.y_range().start;
                for (group, name) in groups.iter().enumerate() {
                    let (x, y) = chart.backend_coord(&(group as f64 + 0.5, bottom));
                    draw_group_name(root, name, (x, y + 8), below > FLAT)?;
                }
            }
            Content::Lines { x, lines } => self.draw_lines(&mut chart, x.scale, lines)?,
        }
        self.marks.iter().try_for_each(|mark| mark.draw(root, &mut chart))
    }

    /// The vertical axis.
    fn vertical(&self) -> Coordinate {
        let scale = self.y.scale;
        let has_base = match self.content {
            Content::Bars { .. } => true,
            Content::Lines { .. } => scale == Scale::Linear,
        };
        let values = self.values().chain(self.marks.iter().map(|mark| mark.value));
        scale.around(values.chain(has_base.then(|| scale.base())))
    }

    fn draw_bars(&self, chart: &mut Chart, series: &[Bars]) -> Drawn {
        let base = self.y.scale.base();
        let width = 0.8 / measured(series).count() as f64;
        for (place, (colour, bars)) in measured(series).enumerate() {
            let style = colour.filled();
            let left = |group: usize| group as f64 + 0.1 + width * place as f64;
            let can_show = |value: &f64| self.y.scale.can_show(*value);
            let bars = bars.values.iter().enumerate();
            let bars = bars.filter_map(|(group, value)| Some((group, value.filter(can_show)?)));
            chart.draw_series(bars.map(|(group, value)| {
                Rectangle::new([(left(group), base), (left(group) + width, value)], style)
            }))?;
        }
        Ok(())
    }

    fn draw_lines(&self, chart: &mut Chart, x: Scale, lines: &[PlottedLine]) -> Drawn {
        for line in lines {
            let points = line.points.iter().copied();
            let points = points.filter(|(a, b)| x.can_show(*a) && self.y.scale.can_show(*b));
            let points: Vec<_> = points.collect();
            let colour = colour(line.colour);
            match line.style {
                LineStyle::Solid => {
                    chart.draw_series(LineSeries::new(points, colour.stroke_width(3)))?
                }
                LineStyle::Dashed => {
                    let style = colour.stroke_width(2);
                    chart.draw_series(DashedLineSeries::new(points, 7, 5, style))?
                }
                LineStyle::Points => {
                    let style = colour.mix(0.5).filled();
                    chart.draw_series(points.into_iter().map(|at| Circle::new(at, 3, style)))?
                }
            };
        }
        Ok(())
    }

    /// Colours and names of what has one.
    fn legend(&self) -> Vec<(LineStyle, RGBColor, &str)> {
        match &self.content {
            Content::Bars { series, .. } => measured(series)
                .map(|(colour, bars)| (LineStyle::Solid, colour, bars.name.as_str()))
                .collect(),
            Content::Lines { lines, .. } => {
                let named = lines.iter().filter(|line| !line.name.is_empty());
                named.map(|line| (line.style, colour(line.colour), line.name.as_str())).collect()
            }
        }
    }
}

impl Mark {
    fn draw(&self, root: &Area, chart: &mut Chart) -> Drawn {
        let (x, top) = (chart.x_range(), chart.y_range().end);
        let x = self.group.map_or(x, |group| group as f64..group as f64 + 1.0);
        let ends = [(x.start, self.value), (x.end, self.value)];
        chart.draw_series(DashedLineSeries::new(ends, 8, 4, BLACK.stroke_width(1)))?;
        let (at, place) = match self.group {
            None => {
                let (x, y) = chart.backend_coord(&ends[1]);
                ((x + 6, y), Pos::new(HPos::Left, VPos::Center))
            }
            // Above the bars.
            Some(_) => {
                let (x, y) = chart.backend_coord(&((x.start + x.end) / 2.0, top));
                ((x, y - 8), Pos::new(HPos::Center, VPos::Center))
            }
        };
        root.draw_text(&self.label, &font(SMALL).pos(place), at)?;
        Ok(())
    }
}

/// Title and legend of a panel; how high they are.
fn draw_head(area: &Area, title: &str, legend: &[(LineStyle, RGBColor, &str)]) -> Drawn<i32> {
    let left = LEFT + MARGIN;
    let right = area.dim_in_pixel().0 as i32 - MARGIN;
    let mut y = 4;
    if !title.is_empty() {
        area.draw_text(title, &font(TEXT + 2), (left, y))?;
        y += LEADING + 4;
    }
    let mut x = left;
    for (style, colour, name) in legend {
        let width = SWATCH + text_width(name, TEXT) + 18;
        if x > left && x + width > right {
            (x, y) = (left, y + LEADING);
        }
        let middle = y + TEXT / 2;
        let ends = [(x, middle), (x + SWATCH - 8, middle)];
        match style {
            LineStyle::Solid => area.draw(&PathElement::new(ends, colour.stroke_width(6)))?,
            LineStyle::Dashed => {
                area.draw(&DashedPathElement::new(ends, 6, 4, colour.stroke_width(2)))?
            }
            LineStyle::Points => {
                area.draw(&Circle::new((x + SWATCH / 2 - 4, middle), 4, colour.mix(0.5).filled()))?
            }
        }
        let beside = Pos::new(HPos::Left, VPos::Center);
        area.draw_text(name, &font(TEXT).pos(beside), (x + SWATCH, middle))?;
        x += width;
    }
    Ok(y + LEADING)
}

/// The series that have bars. The others leave their colours unused, so that all pictures of a suite have the same.
fn measured(series: &[Bars]) -> impl Iterator<Item = (RGBColor, &Bars)> {
    let series = series.iter().enumerate();
    let measured = series.filter(|(_, bars)| bars.values.iter().any(Option::is_some));
    measured.map(|(index, bars)| (colour(index), bars))
}

/// The name of a group below the axis, upright where there is no room for it to lie.
fn draw_group_name(root: &Area, name: &str, at: (i32, i32), is_upright: bool) -> Drawn {
    let style = font(SMALL);
    let style = match is_upright {
        true => style.transform(FontTransform::Rotate270).pos(Pos::new(HPos::Right, VPos::Center)),
        false => style.pos(Pos::new(HPos::Center, VPos::Top)),
    };
    root.draw_text(name, &style, at)?;
    Ok(())
}

fn font(size: i32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&BLACK)
}

/// About; what shows the picture has fonts of its own.
fn text_width(text: &str, size: i32) -> i32 {
    text.chars().count() as i32 * size * 9 / 20
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}

impl Scale {
    fn can_show(self, value: f64) -> bool {
        value.is_finite() && (self == Scale::Linear || value > 0.0)
    }

    /// Where bars start.
    fn base(self) -> f64 {
        match self {
            Scale::Linear => 0.0,
            Scale::Logarithmic => 1.0,
        }
    }

    /// An axis with all these values, and some room for those at its ends.
    fn around(self, values: impl Iterator<Item = f64>) -> Coordinate {
        let (least, most) = values
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
                (least.min(value), most.max(value))
            });
        let range = match self {
            Scale::Linear => {
                let room = if most > least { 0.06 * (most - least) } else { 1.0 };
                // Nothing beyond an end at 0.
                let from = if least == 0.0 { 0.0 } else { least - room };
                from..if most == 0.0 && least < 0.0 { 0.0 } else { most + room }
            }
            Scale::Logarithmic => least / 1.5..most * 1.5,
        };
        Coordinate { range, ticks: Ticks::Of(self) }
    }
}

/// An axis of either scale, or of groups of bars.
#[derive(Clone, Debug)]
struct Coordinate {
    range: Range<f64>,
    ticks: Ticks,
}

#[derive(Clone, Copy, Debug)]
enum Ticks {
    None,
    Of(Scale),
}

impl Coordinate {
    fn groups(count: usize) -> Coordinate {
        Coordinate { range: 0.0..count as f64, ticks: Ticks::None }
    }

    /// Between 0 and 1 from end to end.
    fn place(&self, value: f64) -> f64 {
        let Range { start, end } = self.range;
        match self.ticks {
            Ticks::Of(Scale::Logarithmic) => (value / start).ln() / (end / start).ln(),
            Ticks::None | Ticks::Of(Scale::Linear) => (value - start) / (end - start),
        }
    }
}

impl Ranged for Coordinate {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (self.place(*value) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match self.ticks {
            Ticks::None => Vec::new(),
            Ticks::Of(Scale::Linear) => RangedCoordf64::from(self.range.clone()).key_points(hint),
            Ticks::Of(Scale::Logarithmic) => logarithmic_ticks(&self.range),
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Coordinate {
    fn format(value: &f64) -> String {
        // Sums of decimal fractions are a little off.
        format!("{}", (value * 1e6).round() / 1e6)
    }
}

/// 1, 2 and 5 times powers of ten; the powers alone where there are many.
fn logarithmic_ticks(range: &Range<f64>) -> Vec<f64> {
    let powers = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    let steps: &[f64] = if powers.clone().count() > 5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    powers
        .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)))
        .filter(|tick| range.contains(tick))
        .collect()
}
