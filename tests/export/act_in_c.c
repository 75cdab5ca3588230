/* Acts with a SavedModel through TensorFlow's C API, and knows nothing else.
 *
 *     act_in_c MODEL REQUEST RESPONSE
 *
 * REQUEST and RESPONSE hold tensors: a line "name dtype rank sizes..", then the bytes. Each leads
 * with steps and rows. A state goes from step to step; what it is at first the model says itself.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

enum { MOST = 32, RANKS = 8 };

struct named {
  char name[128];
  TF_Tensor *tensor;
};

struct signature {
  int num_inputs, num_outputs;
  char inputs[MOST][128], outputs[MOST][128];
  TF_Output input_ports[MOST], output_ports[MOST];
};

static void fail(const char *what, const char *which) {
  fprintf(stderr, "%s: %s\n", what, which);
  exit(1);
}

static void check(TF_Status *status, const char *what) {
  if (TF_GetCode(status) != TF_OK) fail(what, TF_Message(status));
}

/* Protocol buffers: a message is a row of fields, each a number and either an integer or bytes. */

struct span {
  const uint8_t *at, *end;
};

static uint64_t varint(struct span *bytes) {
  uint64_t value = 0;
  for (int shift = 0; bytes->at < bytes->end; shift += 7) {
    uint8_t byte = *bytes->at++;
    value |= (uint64_t)(byte & 127) << shift;
    if (!(byte & 128)) break;
  }
  return value;
}

/* The number of the next field, whose bytes are `value`; 0 at the end. */
static int field(struct span *message, struct span *value) {
  if (message->at >= message->end) return 0;
  uint64_t key = varint(message), size = 0;
  switch (key & 7) {
    case 0: varint(message); break;
    case 1: size = 8; break;
    case 2: size = varint(message); break;
    case 5: size = 4; break;
    default: fail("the graph", "is damaged");
  }
  value->at = message->at;
  value->end = message->at = message->at + size;
  return (int)(key >> 3);
}

static int is(struct span text, const char *expected) {
  size_t size = strlen(expected);
  return (size_t)(text.end - text.at) == size && !memcmp(text.at, expected, size);
}

static void entry(struct span message, struct span *key, struct span *value) {
  struct span part;
  for (int number; (number = field(&message, &part));) *(number == 1 ? key : value) = part;
}

/* A port of the graph from a `TensorInfo`, whose first field is a name such as "obs:0". */
static TF_Output port(TF_Graph *graph, struct span info) {
  char name[512] = "";
  struct span part;
  for (int number; (number = field(&info, &part));)
    if (number == 1) snprintf(name, sizeof name, "%.*s", (int)(part.end - part.at), part.at);
  char *colon = strrchr(name, ':');
  if (!colon) fail("no name of a tensor", name);
  *colon = 0;
  TF_Output output = {TF_GraphOperationByName(graph, name), atoi(colon + 1)};
  if (!output.oper) fail("no such operation", name);
  return output;
}

/* Finds a signature in a `MetaGraphDef`, whose fields 5 are signatures by name. */
static int find(TF_Graph *graph, const TF_Buffer *meta, const char *name, struct signature *found) {
  struct span message = {meta->data, (const uint8_t *)meta->data + meta->length}, part;
  memset(found, 0, sizeof *found);
  for (int number; (number = field(&message, &part));) {
    struct span key = {0}, value = {0};
    if (number != 5) continue;
    entry(part, &key, &value);
    if (!is(key, name)) continue;
    struct span side;
    while ((number = field(&value, &side))) {
      if (number > 2) continue;
      struct span tensor = {0}, info = {0};
      entry(side, &tensor, &info);
      int *count = number == 1 ? &found->num_inputs : &found->num_outputs;
      char(*names)[128] = number == 1 ? found->inputs : found->outputs;
      TF_Output *ports = number == 1 ? found->input_ports : found->output_ports;
      snprintf(names[*count], 128, "%.*s", (int)(tensor.end - tensor.at), tensor.at);
      ports[(*count)++] = port(graph, info);
    }
    return 1;
  }
  return 0;
}

static TF_Tensor *lookup(struct named *tensors, int count, const char *name) {
  for (int i = 0; i < count; i++)
    if (!strcmp(tensors[i].name, name)) return tensors[i].tensor;
  return NULL;
}

static int read_tensors(const char *path, struct named *tensors) {
  FILE *file = fopen(path, "rb");
  if (!file) fail("cannot read", path);
  int count = 0, dtype, rank;
  while (fscanf(file, "%127s %d %d", tensors[count].name, &dtype, &rank) == 3) {
    int64_t sizes[RANKS];
    size_t bytes = TF_DataTypeSize(dtype);
    for (int i = 0; i < rank; i++) {
      long long size;
      if (fscanf(file, "%lld", &size) != 1) fail("cannot read", path);
      bytes *= sizes[i] = size;
    }
    fgetc(file);
    TF_Tensor *tensor = TF_AllocateTensor(dtype, sizes, rank, bytes);
    if (fread(TF_TensorData(tensor), 1, bytes, file) != bytes) fail("is too short", path);
    tensors[count++].tensor = tensor;
  }
  fclose(file);
  return count;
}

/* One step of a tensor that leads with steps. */
static TF_Tensor *at_step(TF_Tensor *all, int step) {
  int64_t sizes[RANKS];
  int rank = TF_NumDims(all) - 1;
  for (int i = 0; i < rank; i++) sizes[i] = TF_Dim(all, i + 1);
  size_t bytes = TF_TensorByteSize(all) / TF_Dim(all, 0);
  TF_Tensor *one = TF_AllocateTensor(TF_TensorType(all), sizes, rank, bytes);
  memcpy(TF_TensorData(one), (char *)TF_TensorData(all) + step * bytes, bytes);
  return one;
}

static void run(TF_Session *session, struct signature *signature, TF_Tensor **inputs,
                TF_Tensor **outputs) {
  TF_Status *status = TF_NewStatus();
  TF_SessionRun(session, NULL, signature->input_ports, inputs, signature->num_inputs,
                signature->output_ports, outputs, signature->num_outputs, NULL, 0, NULL, status);
  check(status, "acting");
  TF_DeleteStatus(status);
}

int main(int count, char **arguments) {
  if (count != 4) fail("usage", "act_in_c MODEL REQUEST RESPONSE");
  struct named given[MOST], states[MOST];
  int num_given = read_tensors(arguments[2], given), num_states = 0;
  int steps = TF_Dim(given[0].tensor, 0);

  TF_Status *status = TF_NewStatus();
  TF_Graph *graph = TF_NewGraph();
  TF_SessionOptions *options = TF_NewSessionOptions();
  TF_Buffer *meta = TF_NewBuffer();
  const char *tags[] = {"serve"};
  TF_Session *session = TF_LoadSessionFromSavedModel(options, NULL, arguments[1], tags, 1, graph,
                                                     meta, status);
  check(status, "loading");
  static struct signature act, start;
  if (!find(graph, meta, "serving_default", &act)) fail("no signature", "serving_default");

  TF_Tensor *inputs[MOST], *outputs[MOST];
  if (find(graph, meta, "initial_state", &start)) {
    int64_t rows = TF_Dim(given[0].tensor, 1);
    inputs[0] = TF_AllocateTensor(TF_INT32, &rows, 1, rows * sizeof(int32_t));
    memset(TF_TensorData(inputs[0]), 0, rows * sizeof(int32_t));
    run(session, &start, inputs, outputs);
    TF_DeleteTensor(inputs[0]);
    for (num_states = 0; num_states < start.num_outputs; num_states++) {
      strcpy(states[num_states].name, start.outputs[num_states]);
      states[num_states].tensor = outputs[num_states];
    }
  }

  static TF_Tensor *all[MOST][64];
  for (int step = 0; step < steps; step++) {
    for (int i = 0; i < act.num_inputs; i++) {
      TF_Tensor *tensor = lookup(given, num_given, act.inputs[i]);
      inputs[i] = tensor ? at_step(tensor, step) : lookup(states, num_states, act.inputs[i]);
      if (!inputs[i]) fail("nothing was given as", act.inputs[i]);
    }
    run(session, &act, inputs, outputs);
    for (int i = 0; i < act.num_outputs; i++) {
      all[i][step] = outputs[i];
      for (int j = 0; j < num_states; j++)
        if (!strncmp(act.outputs[i], "state_out_", 10) &&
            !strcmp(act.outputs[i] + 10, states[j].name + 9))
          states[j].tensor = outputs[i];
    }
  }

  FILE *file = fopen(arguments[3], "wb");
  if (!file) fail("cannot write", arguments[3]);
  for (int i = 0; i < act.num_outputs; i++) {
    TF_Tensor *first = all[i][0];
    fprintf(file, "%s %d %d %d", act.outputs[i], TF_TensorType(first), TF_NumDims(first) + 1, steps);
    for (int j = 0; j < TF_NumDims(first); j++) fprintf(file, " %lld", (long long)TF_Dim(first, j));
    fputc('\n', file);
    for (int step = 0; step < steps; step++)
      fwrite(TF_TensorData(all[i][step]), 1, TF_TensorByteSize(first), file);
  }
  if (fclose(file)) fail("cannot write", arguments[3]);
  TF_CloseSession(session, status);
  check(status, "closing");
  TF_DeleteSession(session, status);
  TF_DeleteGraph(graph);
  return 0;
}
