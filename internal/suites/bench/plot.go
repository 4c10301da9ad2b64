package main

import (
	"bytes"
	"image/color"
	"os"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// palette has colours that people with any eyesight can distinguish (Okabe and
// Ito).
var palette = []color.Color{
	color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255},
	color.RGBA{204, 121, 167, 255}, color.RGBA{86, 180, 233, 255}, color.RGBA{230, 159, 0, 255},
}

var grey = color.RGBA{205, 205, 205, 255}

// canvas draws plots side by side into an SVG file.
func canvas(file string, width, height vg.Length, plots ...*plot.Plot) error {
	c := vgsvg.New(width, height)
	tiles := draw.Tiles{Rows: 1, Cols: len(plots), PadX: vg.Points(12), PadTop: vg.Points(4), PadBottom: vg.Points(4), PadLeft: vg.Points(4), PadRight: vg.Points(10)}
	for k, part := range plot.Align([][]*plot.Plot{plots}, tiles, draw.New(c))[0] {
		plots[k].Draw(part)
	}
	var svg bytes.Buffer
	if _, err := c.WriteTo(&svg); err != nil {
		return err
	}
	// Arial and Helvetica have the same widths, by which the labels are placed.
	text := bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:'Liberation Sans',Arial,Helvetica,sans-serif"))
	return os.WriteFile(file, text, 0o644)
}

func newPlot(title, x, y string) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.TextStyle.Font.Size, p.Legend.TextStyle.Font.Size = vg.Points(12), vg.Points(9)
	p.Legend.Top = true
	return p
}

// decades labels ticks as 1, 10, 100.
type decades struct{}

func (decades) Ticks(low, high float64) []plot.Tick {
	ticks := plot.LogTicks{Prec: -1}.Ticks(low, high)
	for i := range ticks {
		if v, err := strconv.ParseFloat(ticks[i].Label, 64); err == nil {
			ticks[i].Label = number(v)
		}
	}
	return ticks
}

// names returns the distinct names in the rows, in their order.
func names(rows []Row, of func(Row) string) (out []string) {
	for _, r := range rows {
		if n := of(r); !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

func caseOf(r Row) string { return r.Case }
func wayOf(r Row) string  { return r.Way }

// points are values with horizontal error bars, at a height.
type points struct {
	plotter.XYs
	plotter.XErrors
}

// spots adds values with their spreads to a plot that has names on its y axis.
func spots(p *plot.Plot, name string, c color.Color, at points) error {
	bars, err := plotter.NewXErrorBars(at)
	if err != nil {
		return err
	}
	bars.LineStyle = draw.LineStyle{Color: c, Width: vg.Points(1.2)}
	bars.CapWidth = vg.Points(4)
	dots, err := plotter.NewScatter(at.XYs)
	if err != nil {
		return err
	}
	dots.GlyphStyle = draw.GlyphStyle{Color: c, Radius: vg.Points(2.8), Shape: draw.CircleGlyph{}}
	p.Add(bars, dots)
	if name != "" {
		p.Legend.Add(name, dots)
	}
	return nil
}

// plotRatios shows each ratio with its quartiles, and the error bar around 1 in
// grey.
func plotRatios(s Section, file string) error {
	cases := names(s.Rows, caseOf)
	slices.Reverse(cases)
	p := newPlot(s.Title+": rate by that of the same work without", "1 = as fast; grey: the floor against itself", "")
	byWay := map[string]*points{}
	low, high := 0.9, 1.1
	for _, r := range s.Rows {
		if r.Ratio == nil {
			continue
		}
		y := float64(slices.Index(cases, r.Case))
		if r.Way == again {
			band, err := plotter.NewPolygon(plotter.XYs{{X: 1 - r.Bar, Y: y - 0.4}, {X: 1 + r.Bar, Y: y - 0.4}, {X: 1 + r.Bar, Y: y + 0.4}, {X: 1 - r.Bar, Y: y + 0.4}})
			if err != nil {
				return err
			}
			band.Color, band.LineStyle.Width = grey, 0
			p.Add(band)
			continue
		}
		if byWay[r.Way] == nil {
			byWay[r.Way] = &points{}
		}
		at := byWay[r.Way]
		at.XYs = append(at.XYs, plotter.XY{X: r.Ratio[1], Y: y})
		at.XErrors = append(at.XErrors, struct{ Low, High float64 }{r.Ratio[1] - r.Ratio[0], r.Ratio[2] - r.Ratio[1]})
		low, high = min(low, r.Ratio[0]-0.03), max(high, r.Ratio[2]+0.03)
	}
	one, err := plotter.NewLine(plotter.XYs{{X: 1, Y: -0.5}, {X: 1, Y: float64(len(cases)) - 0.5}})
	if err != nil {
		return err
	}
	one.Color, one.Width = color.Gray{130}, vg.Points(0.7)
	p.Add(one)
	for i, way := range names(s.Rows, wayOf) {
		if at := byWay[way]; at != nil {
			if err := spots(p, way, palette[i%len(palette)], *at); err != nil {
				return err
			}
		}
	}
	var halves plotter.XYs
	for _, r := range s.Rows {
		if by := s.byMedian(r); r.Ratio != nil && r.Way != again && by > 0 {
			halves = append(halves, plotter.XY{X: by, Y: float64(slices.Index(cases, r.Case))})
			low, high = min(low, by-0.03), max(high, by+0.03)
		}
	}
	dots, err := plotter.NewScatter(halves)
	if err != nil {
		return err
	}
	dots.GlyphStyle = draw.GlyphStyle{Color: color.Black, Radius: vg.Points(3.5), Shape: draw.PlusGlyph{}}
	p.Add(dots)
	p.Legend.Add("by p50", dots)
	p.X.Min, p.X.Max = max(0, low), min(high, 4)
	p.Legend.Top, p.Legend.Left = false, true
	p.NominalY(cases...)
	return canvas(file, vg.Points(620), vg.Points(float64(70+17*max(len(cases), 4))), p)
}

// byPeer shows one value of each peer on a scale of decades, with a plot for
// each case prefix and a colour for each case.
func byPeer(s Section, file, title, x, value, until string, prefixes ...string) error {
	ways := names(s.Rows, wayOf)
	ways = slices.DeleteFunc(ways, func(w string) bool { return w == again })
	slices.Reverse(ways)
	var plots []*plot.Plot
	for k, prefix := range prefixes {
		p := newPlot(strings.Trim(prefix, ", ")+": "+title, x, "")
		low, high := 0.0, 0.0
		for i, cas := range names(s.Rows, caseOf) {
			if !strings.HasPrefix(cas, prefix) {
				continue
			}
			at := points{}
			for _, r := range s.Rows {
				v := r.Values[value]
				if r.Case != cas || v <= 0 || r.Way == again {
					continue
				}
				at.XYs = append(at.XYs, plotter.XY{X: v, Y: float64(slices.Index(ways, r.Way))})
				more := max(0, r.Values[until]-v)
				at.XErrors = append(at.XErrors, struct{ Low, High float64 }{0, more})
				if low == 0 || v < low {
					low = v
				}
				high = max(high, v+more)
			}
			if len(at.XYs) == 0 {
				continue
			}
			if err := spots(p, strings.TrimPrefix(cas, prefix), palette[i%3], at); err != nil {
				return err
			}
		}
		if high == 0 {
			continue
		}
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades{}
		p.X.Min, p.X.Max = low/1.3, high*1.3
		p.Legend.Top, p.Legend.Left = k > 0, k > 0
		p.NominalY(ways...)
		plots = append(plots, p)
	}
	if len(plots) == 0 {
		return nil
	}
	return canvas(file, vg.Points(float64(470*len(plots))), vg.Points(float64(80+20*len(ways))), plots...)
}

func plotRates(s Section, file string) error {
	return byPeer(s, file, "acquire and release", "pairs a second", "a second", "", "durable, ", "not durable, ")
}

func plotHandOver(s Section, file string) error {
	return byPeer(s, file, "hand-over of one lock", "ms: median to p99", "p50 ms", "p99 ms", "durable, ", "not durable, ")
}
