// What is drawn: made by moriio_observed/dashboarding/preview/contents.py.

import type { DataTransformerConfig, FieldConfigSource, FieldDTO } from '@grafana/data';

export interface Panel {
  id: number;
  type: string;
  title: string;
  description?: string;
  gridPos: { x: number; y: number; w: number; h: number };
  options: Record<string, any>;
  fieldConfig: FieldConfigSource;
  links?: unknown[];
  transformations?: DataTransformerConfig[];
}

export interface Frame {
  refId: string;
  fields: FieldDTO[];
}

export interface Event {
  title: string;
  colour: string;
  from: number;
  to: number;
}

export interface Contents {
  dashboard: { title: string; description?: string; panels: Panel[] };
  theme: 'dark' | 'light';
  from: number;
  to: number;
  choices: Record<string, string[]>;
  panels: Record<string, { frames: Frame[]; refused?: string }>;
  events: Event[];
}

export async function fetchContents(): Promise<Contents> {
  const answer = await fetch(`contents${window.location.search}`);
  if (!answer.ok) {
    throw new Error(`there is nothing to draw: ${answer.status}`);
  }
  return answer.json();
}
