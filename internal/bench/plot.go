package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// point is a figure at a size, line those of one kind of fleet.
type (
	point struct{ x, y float64 }
	line  struct {
		name   string
		points []point
	}
)

// panel is one diagram: both axes grow by powers of ten, so what grows in proportion has the slope of the dashed line.
type panel struct {
	title, x string
	lines    []line
}

const (
	panelWidth, panelHeight    = 360.0, 300.0
	marginLeft, marginTop      = 60.0, 40.0
	marginRight, marginBottom  = 16.0, 44.0
	plotWidth                  = panelWidth - marginLeft - marginRight
	plotHeight                 = panelHeight - marginTop - marginBottom
	legendHeight               = 30.0
	axisColour, proportionDash = "#777777", "4 4"
)

var lineColours = []string{"#1f6f8b", "#c1440e", "#5b7f2b"}

// columns is how many panels stand side by side.
const columns = 2

// drawing gives panels in rows as an SVG, with the names of the lines below. Equal figures give equal bytes.
func drawing(panels []panel) string {
	var out strings.Builder
	width := panelWidth*float64(min(len(panels), columns)) + marginRight // the last number reaches over the edge
	height := panelHeight * float64((len(panels)+columns-1)/columns)
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="12">`+"\n", width, height+legendHeight)
	fmt.Fprintf(&out, `<rect width="100%%" height="100%%" fill="#ffffff"/>`+"\n")
	for n, p := range panels {
		fmt.Fprintf(&out, `<g transform="translate(%.0f %.0f)">`+"\n", panelWidth*float64(n%columns), panelHeight*float64(n/columns))
		p.draw(&out)
		out.WriteString("</g>\n")
	}
	if len(panels) > 0 {
		drawLegend(&out, panels[0].lines, height)
	}
	out.WriteString("</svg>\n")
	return out.String()
}

// decades are the powers of ten around values, at least one apart.
func decades(values []float64) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if v > 0 {
			low, high = min(low, math.Floor(math.Log10(v))), max(high, math.Ceil(math.Log10(v)))
		}
	}
	if math.IsInf(low, 1) {
		return 0, 1
	}
	return low, max(high, low+1)
}

func (p panel) draw(out *strings.Builder) {
	var xs, ys []float64
	for _, l := range p.lines {
		for _, at := range l.points {
			xs, ys = append(xs, at.x), append(ys, at.y)
		}
	}
	xLow, xHigh := decades(xs)
	yLow, yHigh := decades(ys)
	place := func(x, y float64) (float64, float64) {
		return marginLeft + (math.Log10(x)-xLow)/(xHigh-xLow)*plotWidth, marginTop + (yHigh-math.Log10(y))/(yHigh-yLow)*plotHeight
	}
	fmt.Fprintf(out, `<text x="%.0f" y="22" font-weight="bold">%s</text>`+"\n", marginLeft, html.EscapeString(p.title))
	for d := xLow; d <= xHigh; d++ {
		x, bottom := place(math.Pow(10, d), math.Pow(10, yLow))
		fmt.Fprintf(out, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#e4e4e4"/>`+"\n", x, marginTop, x, bottom)
		fmt.Fprintf(out, `<text x="%.1f" y="%.1f" text-anchor="middle" fill="%s">%s</text>`+"\n", x, bottom+16, axisColour, tick(d))
	}
	for d := yLow; d <= yHigh; d++ {
		left, y := place(math.Pow(10, xLow), math.Pow(10, d))
		fmt.Fprintf(out, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#e4e4e4"/>`+"\n", left, y, left+plotWidth, y)
		fmt.Fprintf(out, `<text x="%.1f" y="%.1f" text-anchor="end" fill="%s">%s</text>`+"\n", left-6, y+4, axisColour, tick(d))
	}
	fmt.Fprintf(out, `<text x="%.0f" y="%.0f" text-anchor="middle" fill="%s">%s</text>`+"\n", marginLeft+plotWidth/2, panelHeight-8, axisColour, html.EscapeString(p.x))
	rise := min(xHigh-xLow, yHigh-yLow)
	x1, y1 := place(math.Pow(10, xHigh-rise), math.Pow(10, yLow))
	x2, y2 := place(math.Pow(10, xHigh), math.Pow(10, yLow+rise))
	fmt.Fprintf(out, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-dasharray="%s"/>`+"\n", x1, y1, x2, y2, axisColour, proportionDash)
	for n, l := range p.lines {
		var path strings.Builder
		for _, at := range l.points {
			if at.y > 0 {
				x, y := place(at.x, at.y)
				fmt.Fprintf(&path, "%.1f,%.1f ", x, y)
				fmt.Fprintf(out, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`+"\n", x, y, lineColours[n%len(lineColours)])
			}
		}
		if strings.Count(path.String(), " ") > 1 { // one point makes no line
			fmt.Fprintf(out, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.TrimSpace(path.String()), lineColours[n%len(lineColours)])
		}
	}
}

func drawLegend(out *strings.Builder, lines []line, y float64) {
	x := marginLeft
	for n, l := range lines {
		if len(l.points) == 0 {
			continue
		}
		fmt.Fprintf(out, `<line x1="%.0f" y1="%.0f" x2="%.0f" y2="%.0f" stroke="%s" stroke-width="2"/>`+"\n", x, y+10, x+24, y+10, lineColours[n%len(lineColours)])
		fmt.Fprintf(out, `<text x="%.0f" y="%.0f">%s</text>`+"\n", x+30, y+14, html.EscapeString(l.name))
		x += 46 + 6.5*float64(len(l.name))
	}
	fmt.Fprintf(out, `<line x1="%.0f" y1="%.0f" x2="%.0f" y2="%.0f" stroke="%s" stroke-dasharray="%s"/>`+"\n", x, y+10, x+24, y+10, axisColour, proportionDash)
	fmt.Fprintf(out, `<text x="%.0f" y="%.0f">in proportion</text>`+"\n", x+30, y+14)
}

// tick writes a power of ten as people do.
func tick(decade float64) string {
	if decade >= 3 && decade < 6 {
		return fmt.Sprintf("%.0f,000", math.Pow(10, decade-3))
	}
	return fmt.Sprintf("%g", math.Pow(10, decade))
}
