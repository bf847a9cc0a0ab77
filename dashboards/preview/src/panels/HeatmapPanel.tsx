import { type Field, FieldType, formattedValueToString, getValueFormat } from '@grafana/data';
import { useTheme2 } from '@grafana/ui';
import * as schemes from 'd3-scale-chromatic';

import { type Cell, Cells } from './Cells';
import type { Drawing } from './drawing';

const LEGEND_HEIGHT = 40;

type Scheme = (share: number) => string;

/** Grafana's schemes, light where there is little; on a dark page dark where there is little. */
function schemeOf(name: string, isDark: boolean): Scheme {
  const scheme = (schemes as unknown as Record<string, Scheme | undefined>)[`interpolate${name}`];
  if (!scheme) {
    throw new Error(`the preview knows no colours called ${name}`);
  }
  return isDark ? (share) => scheme(1 - share) : scheme;
}

export function HeatmapPanel({ panel, frames, width, height, ...rest }: Drawing) {
  const theme = useTheme2();
  const { color, filterValues, yAxis, cellGap, legend } = panel.options;
  const scheme = schemeOf(color.scheme, theme.isDark);
  const [frame] = frames;
  const times = frame.fields.find((field) => field.type === FieldType.time)!;
  const buckets = frame.fields.filter((field) => field.type === FieldType.number);
  const counts = buckets.flatMap((bucket) => bucket.values).filter((count) => count > filterValues.le);
  const least = Math.min(...counts);
  const most = Math.max(...counts);
  const shareOf = (count: number) => (most > least ? (count - least) / (most - least) : 1);
  const colourOf = (share: number) => scheme(Math.round(share * (color.steps - 1)) / (color.steps - 1));
  const format = getValueFormat(yAxis.unit);
  const bound = (bucket: Field) =>
    bucket.name === '+Inf' ? bucket.name : formattedValueToString(format(Number(bucket.name)));
  const legendHeight = legend.show ? LEGEND_HEIGHT : 0;
  return (
    <>
      <Cells
        labels={buckets.map(bound)}
        labelsAt="edge"
        cells={buckets.flatMap((bucket, row) => cellsOf(times, bucket, row, filterValues.le, (count) => colourOf(shareOf(count))))}
        fullness={1}
        gap={cellGap}
        width={width}
        height={height - legendHeight}
        {...rest}
      />
      {legend.show && counts.length > 0 && <ColourScale colourOf={colourOf} least={least} most={most} />}
    </>
  );
}

/** A count tells of the time since the point before it. */
function cellsOf(
  times: Field<number>, bucket: Field<number | null>, row: number, empty: number, colourOf: (count: number) => string,
): Cell[] {
  return bucket.values.flatMap((count, index) => {
    if (index === 0 || count === null || count <= empty) {
      return [];
    }
    return [{ row, from: times.values[index - 1], to: times.values[index], fill: colourOf(count) }];
  });
}

function ColourScale({ colourOf, least, most }: { colourOf: Scheme; least: number; most: number }) {
  const stops = Array.from({ length: 11 }, (_, index) => colourOf(index / 10));
  const text = getValueFormat('short');
  return (
    <div style={{ width: 280, marginLeft: 60, paddingTop: 8, fontSize: 12 }}>
      <div style={{ height: 8, background: `linear-gradient(to right, ${stops.join(', ')})` }} />
      <div style={{ display: 'flex', justifyContent: 'space-between' }}>
        {[least, most].map((count, index) => (
          <span key={index}>{formattedValueToString(text(count))}</span>
        ))}
      </div>
    </div>
  );
}
