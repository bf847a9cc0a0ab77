import { TimeSeries, type UPlotConfigBuilder, useTheme2 } from '@grafana/ui';
import { useLayoutEffect } from 'react';

import type { Event } from '../contents';
import { TIME_ZONE } from '../fields';
import { type Drawing, drawEvents, PADDING } from './drawing';

export function TimeSeriesPanel({ panel, frames, events, timeRange, width, height }: Drawing) {
  return (
    <TimeSeries
      frames={frames}
      timeRange={timeRange}
      timeZone={TIME_ZONE}
      width={width}
      height={height}
      legend={panel.options.legend}
    >
      {(builder) => <Over builder={builder} events={events} />}
    </TimeSeries>
  );
}

function Over({ builder, events }: { builder: UPlotConfigBuilder; events: Event[] }) {
  const theme = useTheme2();
  // Before the plot is made, which happens when its parent is mounted.
  useLayoutEffect(() => {
    builder.setPadding(PADDING);
    builder.addHook('draw', (plot) => drawEvents(plot, events, theme));
  }, [builder, events, theme]);
  return null;
}
