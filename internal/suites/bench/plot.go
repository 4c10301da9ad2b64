package main

import (
	"bytes"
	"image/color"
	"os"
	"slices"
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

func newPlot(title, x string) *plot.Plot {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Title.Text, p.X.Label.Text = title, x
	p.Title.TextStyle.Font.Size, p.Legend.TextStyle.Font.Size = vg.Points(12), vg.Points(9)
	p.Legend.Top = true
	return p
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

// series is what one colour shows: values with their spreads, each at the height
// of a name.
type series struct {
	name string
	plotter.XYs
	plotter.XErrors
}

// at adds a value with its spread.
func (s *series) at(low, x, high, y float64) {
	s.XYs = append(s.XYs, plotter.XY{X: x, Y: y})
	s.XErrors = append(s.XErrors, struct{ Low, High float64 }{x - low, high - x})
}

// spots adds series to a plot that has names on its y axis.
func spots(p *plot.Plot, all []*series) error {
	for i, s := range all {
		bars, err := plotter.NewXErrorBars(s)
		if err != nil {
			return err
		}
		c := palette[i%len(palette)]
		bars.LineStyle, bars.CapWidth = draw.LineStyle{Color: c, Width: vg.Points(1.2)}, vg.Points(4)
		dots, err := plotter.NewScatter(s.XYs)
		if err != nil {
			return err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: c, Radius: vg.Points(2.8), Shape: draw.CircleGlyph{}}
		p.Add(bars, dots)
		p.Legend.Add(s.name, dots)
	}
	return nil
}

// plotRatios shows each durable ratio with its quartiles, and the error bar around
// 1 in grey. The table has the others.
func plotRatios(s Section, file string) error {
	s.Rows = slices.DeleteFunc(slices.Clone(s.Rows), func(r Row) bool { return strings.HasPrefix(r.Case, commits(false)) })
	cases := names(s.Rows, caseOf)
	slices.Reverse(cases)
	p := newPlot(s.Title+": rate relative to the same work without a fence", "1 = as fast; grey: the floor against itself")
	var all []*series
	for _, way := range names(s.Rows, wayOf) {
		one := &series{name: way}
		for _, r := range s.Rows {
			y := float64(slices.Index(cases, r.Case))
			switch {
			case r.Way != way || r.Ratio == nil:
			case way == again:
				left, right := 1-r.Bar, 1+r.Bar
				band, err := plotter.NewPolygon(plotter.XYs{{X: left, Y: y - 0.4}, {X: right, Y: y - 0.4}, {X: right, Y: y + 0.4}, {X: left, Y: y + 0.4}})
				if err != nil {
					return err
				}
				band.Color, band.LineStyle.Width = grey, 0
				p.Add(band)
			default:
				one.at(r.Ratio[0], r.Ratio[1], r.Ratio[2], y)
			}
		}
		if len(one.XYs) > 0 {
			all = append(all, one)
		}
	}
	if err := spots(p, all); err != nil {
		return err
	}
	p.X.Min, p.X.Max = max(0, min(0.9, p.X.Min)), min(max(1.1, p.X.Max), 4)
	if len(all) == 1 { // a legend would cover data to say what the title can
		p.Legend, p.Title.Text = plot.NewLegend(), all[0].name+": rate relative to the same transaction without a fence"
	}
	p.Legend.Top, p.Legend.Left = false, true
	p.NominalY(cases...)
	p.Y.Padding = vg.Points(16) // viewers without the font have wider labels
	return canvas(file, vg.Points(640), vg.Points(float64(70+17*max(len(cases), 4))), p)
}
