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

var (
	blue = color.RGBA{0, 114, 178, 255}
	grey = color.RGBA{205, 205, 205, 255}
)

// series is values with their spreads, each at the height of its case.
type series struct {
	plotter.XYs
	plotter.XErrors
}

// plotRatios shows each durable ratio of a section's one way with its quartiles, and
// the error bar around 1 in grey. The table has the others.
func plotRatios(s Section, file string) error {
	rows := slices.DeleteFunc(slices.Clone(s.Rows), func(r Row) bool {
		return r.Ratio == nil || strings.HasPrefix(r.Case, commits(false))
	})
	var cases []string // from below
	for _, r := range slices.Backward(rows) {
		if !slices.Contains(cases, r.Case) {
			cases = append(cases, r.Case)
		}
	}
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.X.Label.Text, p.Title.TextStyle.Font.Size = "1 = as fast; grey: the floor against itself", vg.Points(12)
	var all series
	for _, r := range rows {
		y := float64(slices.Index(cases, r.Case))
		if r.Way != again {
			p.Title.Text = r.Way + ": rate relative to the same transaction without a fence"
			all.XYs = append(all.XYs, plotter.XY{X: r.Ratio[1], Y: y})
			all.XErrors = append(all.XErrors, struct{ Low, High float64 }{r.Ratio[1] - r.Ratio[0], r.Ratio[2] - r.Ratio[1]})
			continue
		}
		left, right := 1-r.Bar, 1+r.Bar
		band, err := plotter.NewPolygon(plotter.XYs{{X: left, Y: y - 0.4}, {X: right, Y: y - 0.4}, {X: right, Y: y + 0.4}, {X: left, Y: y + 0.4}})
		if err != nil {
			return err
		}
		band.Color, band.LineStyle.Width = grey, 0
		p.Add(band)
	}
	bars, err := plotter.NewXErrorBars(all)
	if err != nil {
		return err
	}
	bars.LineStyle, bars.CapWidth = draw.LineStyle{Color: blue, Width: vg.Points(1.2)}, vg.Points(4)
	dots, err := plotter.NewScatter(all.XYs)
	if err != nil {
		return err
	}
	dots.GlyphStyle = draw.GlyphStyle{Color: blue, Radius: vg.Points(2.8), Shape: draw.CircleGlyph{}}
	p.Add(bars, dots)
	p.X.Min, p.X.Max = max(0, min(0.9, p.X.Min)), min(max(1.1, p.X.Max), 4)
	p.NominalY(cases...)
	p.Y.Padding = vg.Points(16) // viewers without the font have wider labels

	c := vgsvg.New(vg.Points(640), vg.Points(float64(70+17*max(len(cases), 4))))
	p.Draw(draw.Crop(draw.New(c), vg.Points(4), -vg.Points(10), vg.Points(4), -vg.Points(4)))
	var svg bytes.Buffer
	if _, err := c.WriteTo(&svg); err != nil {
		return err
	}
	// Arial and Helvetica have the same widths, by which the labels are placed.
	text := bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:'Liberation Sans',Arial,Helvetica,sans-serif"))
	return os.WriteFile(file, text, 0o644)
}
