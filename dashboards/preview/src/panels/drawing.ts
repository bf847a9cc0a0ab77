// What every panel that draws is given, and what is drawn over those with a time axis.

import type { DataFrame, GrafanaTheme2, TimeRange } from '@grafana/data';
import { colorManipulator } from '@grafana/data';
import type uPlot from 'uplot';

import type { Event, Panel } from '../contents';

export interface Drawing {
  panel: Panel;
  frames: DataFrame[];
  events: Event[];
  timeRange: TimeRange;
  width: number;
  height: number;
}

/** Room for half of the last moment on the time axis. */
export const PADDING: uPlot.Padding = [null, 28, null, null];

export function drawEvents(plot: uPlot, events: Event[], theme: GrafanaTheme2): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.setLineDash([5, 5].map((length) => length * devicePixelRatio));
  ctx.lineWidth = 2 * devicePixelRatio;
  for (const event of events) {
    const colour = theme.visualization.getColorByName(event.colour);
    const from = plot.valToPos(event.from, 'x', true);
    const to = plot.valToPos(event.to, 'x', true);
    ctx.fillStyle = colorManipulator.alpha(colour, 0.06);
    ctx.fillRect(from, bbox.top, to - from, bbox.height);
    ctx.strokeStyle = colour;
    ctx.beginPath();
    ctx.moveTo(from, bbox.top);
    ctx.lineTo(from, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}
