// What a dashboard of ours is as JSON, in the types that Grafana publishes.

import type { AnnotationContainer, Dashboard, FieldConfig, Panel, RowPanel } from '@grafana/schema';
import type * as heatmap from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as timeline from '@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as series from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// In JSON an enumeration is its value.
type Text<T extends string> = string extends T ? T : `${T}`;
type Numeral<T extends number> = number extends T
  ? T
  : `${T}` extends `${infer Value extends number}`
    ? Value
    : never;
type Json<T> = 0 extends 1 & T
  ? any
  : T extends string
    ? Text<T>
    : T extends number
      ? Numeral<T>
      : T extends Array<infer Item>
        ? Array<Json<Item>>
        : T extends object
          ? { [Key in keyof T]: Json<T[Key]> }
          : T;

type Of<Type extends string, Options, Custom = {}> = Omit<Panel, 'type' | 'options' | 'fieldConfig'> & {
  type: Type;
  options: Options;
  fieldConfig: {
    defaults: Omit<FieldConfig, 'custom'> & { custom?: Custom };
    overrides: NonNullable<Panel['fieldConfig']>['overrides'];
  };
};

type Shown =
  | Of<'timeseries', series.Options, series.FieldConfig>
  | Of<'stat', stat.Options>
  | Of<'heatmap', heatmap.Options, heatmap.FieldConfig>
  | Of<'state-timeline', timeline.Options, timeline.FieldConfig>
  | Of<'table', table.Options, table.FieldConfig>
  | (Omit<RowPanel, 'type'> & { type: 'row' });

// What Grafana's Prometheus data source reads of an annotation is published nowhere but in its code.
type Event = Omit<NonNullable<AnnotationContainer['list']>[number], 'target'> & {
  target: { refId: string; expr: string } & Record<string, unknown>;
  titleFormat?: string;
  textFormat?: string;
};
type Events = Omit<AnnotationContainer, 'list'> & { list: Event[] };

export type Ours = Json<Omit<Dashboard, 'panels' | 'annotations'> & { panels: Shown[]; annotations: Events }>;
