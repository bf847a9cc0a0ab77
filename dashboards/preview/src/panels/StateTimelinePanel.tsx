import { colorManipulator, type DataFrame, type Field, FieldType, getFieldDisplayName, MappingType, type ValueMapping } from '@grafana/data';
import { LegendDisplayMode } from '@grafana/schema';
import { useTheme2, VizLayout, VizLegend, type VizLegendItem } from '@grafana/ui';

import { type Cell, Cells } from './Cells';
import type { Drawing } from './drawing';

type State = Omit<Cell, 'row' | 'fill'> & { colour: string };

export function StateTimelinePanel({ panel, frames, width, height, ...rest }: Drawing) {
  const theme = useTheme2();
  const { legend, rowHeight } = panel.options;
  const { defaults } = panel.fieldConfig;
  // The first series is the topmost row.
  const rows = frames.map(valuesOf).reverse();
  const opacity = (defaults.custom?.fillOpacity ?? 100) / 100;
  const cells = rows.flatMap((field, row) =>
    states(field, frames[frames.length - 1 - row], !defaults.mappings?.length).map(({ colour, ...state }) => ({
      ...state,
      row,
      fill: colorManipulator.alpha(colour, opacity),
    })),
  );
  const items = legend.showLegend ? itemsOf(defaults.mappings ?? [], theme.visualization.getColorByName) : [];
  return (
    <VizLayout
      width={width}
      height={height}
      legend={
        items.length > 0 ? (
          <VizLayout.Legend placement={legend.placement}>
            <VizLegend placement={legend.placement} items={items} displayMode={LegendDisplayMode.List} readonly />
          </VizLayout.Legend>
        ) : null
      }
    >
      {(innerWidth, innerHeight) => (
        <Cells
          labels={rows.map((field, row) => getFieldDisplayName(field, frames[frames.length - 1 - row], frames))}
          labelsAt="middle"
          cells={cells}
          fullness={rowHeight}
          gap={0}
          width={innerWidth}
          height={innerHeight}
          {...rest}
        />
      )}
    </VizLayout>
  );
}

function valuesOf(frame: DataFrame): Field<number | null> {
  return frame.fields.find((field) => field.type === FieldType.number)!;
}

/** Neighbours of one text and colour are one state, which lasts until the next point. Numbers are told by colour alone. */
function states(field: Field<number | null>, frame: DataFrame, areNumbers: boolean): State[] {
  const times: number[] = frame.fields.find(({ type }) => type === FieldType.time)!.values;
  const step = times.length > 1 ? times[1] - times[0] : 0;
  const found: State[] = [];
  field.values.forEach((value, index) => {
    if (value === null) {
      return;
    }
    const display = field.display!(value);
    const text = areNumbers ? '' : display.text;
    const colour = display.color!;
    const last = found.at(-1);
    if (last && last.to === times[index] && last.text === text && last.colour === colour) {
      last.to += step;
    } else {
      found.push({ from: times[index], to: times[index] + step, text, colour });
    }
  });
  return found;
}

function itemsOf(mappings: ValueMapping[], colourOf: (name: string) => string): VizLegendItem[] {
  return mappings
    .flatMap((mapping) => (mapping.type === MappingType.ValueToText ? Object.values(mapping.options) : []))
    .map(({ text, color }) => ({ label: text ?? '', color: colourOf(color ?? 'text'), yAxis: 1 }));
}
